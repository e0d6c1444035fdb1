"""Linearisation of transformers' encoders: attention becomes linear, in-place, and all other weights are kept.

linearize   the function `linearize`
layers      find the attention layers, and check that a model is supported
attention   linear attention, through transformers' attention interface
classes     configuration and model classes with E and F, which save and load like any other
fields      the configuration field that describes E and F
positions   resizing of the maximum input length
"""
