"""Stability, gradients, robustness and curvature of units and classifiers.

Every docstring describes all arguments, shared ones too, so that `help()` on a
single function suffices.
"""

from keras_linrec.analysis.attacks import AdversarialExamples
from keras_linrec.analysis.attacks import deepfool
from keras_linrec.analysis.attacks import pgd
from keras_linrec.analysis.gradient_flow import gradient_norms
from keras_linrec.analysis.hessian import ExtremeEigenvalues
from keras_linrec.analysis.hessian import Hessian
from keras_linrec.analysis.hessian import HessianSummary
from keras_linrec.analysis.hessian import TraceEstimate
from keras_linrec.analysis.noise import ResponseCurve
from keras_linrec.analysis.noise import salt_and_pepper_response
from keras_linrec.analysis.noise import white_noise_response
from keras_linrec.analysis.plots import plot_eigenvalue_bands
from keras_linrec.analysis.plots import plot_phase_portrait
from keras_linrec.analysis.plots import plot_vector_field
from keras_linrec.analysis.spectra import EigenvalueBands
from keras_linrec.analysis.spectra import eigenvalue_bands
from keras_linrec.analysis.spectra import orthogonality_defect
from keras_linrec.analysis.spectra import real_parts
from keras_linrec.analysis.spectra import spectrum_bounds
from keras_linrec.analysis.stability import StabilityCertificate
from keras_linrec.analysis.stability import stability_certificate
from keras_linrec.analysis.stability_monitor import StabilityMonitor

__all__ = [
    "AdversarialExamples",
    "EigenvalueBands",
    "ExtremeEigenvalues",
    "Hessian",
    "HessianSummary",
    "ResponseCurve",
    "StabilityCertificate",
    "StabilityMonitor",
    "TraceEstimate",
    "deepfool",
    "eigenvalue_bands",
    "gradient_norms",
    "orthogonality_defect",
    "pgd",
    "plot_eigenvalue_bands",
    "plot_phase_portrait",
    "plot_vector_field",
    "real_parts",
    "salt_and_pepper_response",
    "spectrum_bounds",
    "stability_certificate",
    "white_noise_response",
]
