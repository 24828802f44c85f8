"""What units are built on: the base classes and what every layer shares."""
