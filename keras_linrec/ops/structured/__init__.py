"""Structured systems, A = P (D + T^-1) Q: HiPPO matrices, responses, scans."""
