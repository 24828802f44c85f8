"""Stacked linear systems: their layer, and trained networks made into one."""

from keras_linrec.layers.ldstack.layer import LDStack as LDStack
