"""Encoders of transformers whose attention is made linear, in place, all other weights kept.

linearize   the function of that name
layers      which layers attend, and why a model is refused
attention   what they do instead, through transformers' attention interface
classes     the configuration and the models with E and F, which save and load like any other
fields      the field of their configuration that describes E and F
positions   another longest input
depth       fewer layers
"""
