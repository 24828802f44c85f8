"""Stability, gradients, robustness and curvature of units and classifiers.

Every docstring describes all arguments, shared ones too, so that `help()` on a
single function suffices.
"""

from keras_linrec.analysis.attacks import (
    AdversarialExamples as AdversarialExamples,
)
from keras_linrec.analysis.attacks import deepfool as deepfool
from keras_linrec.analysis.attacks import pgd as pgd
from keras_linrec.analysis.gradient_flow import gradient_norms as gradient_norms
from keras_linrec.analysis.hessian import (
    ExtremeEigenvalues as ExtremeEigenvalues,
)
from keras_linrec.analysis.hessian import Hessian as Hessian
from keras_linrec.analysis.hessian import HessianSummary as HessianSummary
from keras_linrec.analysis.hessian import TraceEstimate as TraceEstimate
from keras_linrec.analysis.noise import ResponseCurve as ResponseCurve
from keras_linrec.analysis.noise import (
    salt_and_pepper_response as salt_and_pepper_response,
)
from keras_linrec.analysis.noise import (
    white_noise_response as white_noise_response,
)
from keras_linrec.analysis.plots import (
    plot_eigenvalue_bands as plot_eigenvalue_bands,
)
from keras_linrec.analysis.plots import (
    plot_phase_portrait as plot_phase_portrait,
)
from keras_linrec.analysis.plots import plot_vector_field as plot_vector_field
from keras_linrec.analysis.spectra import EigenvalueBands as EigenvalueBands
from keras_linrec.analysis.spectra import eigenvalue_bands as eigenvalue_bands
from keras_linrec.analysis.spectra import (
    orthogonality_defect as orthogonality_defect,
)
from keras_linrec.analysis.spectra import real_parts as real_parts
from keras_linrec.analysis.spectra import spectrum_bounds as spectrum_bounds
from keras_linrec.analysis.stability import (
    StabilityCertificate as StabilityCertificate,
)
from keras_linrec.analysis.stability import (
    stability_certificate as stability_certificate,
)
from keras_linrec.analysis.stability_monitor import (
    StabilityMonitor as StabilityMonitor,
)
