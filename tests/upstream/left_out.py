"""Tests of transformers that are not run on linearised models, by the beginning of their name, and why.

accelerate's source release has nothing to run: its tests build small modules of their own or load models of the hub by
their names, and take no other model. Offloaded models of ours are tested in `tests/operator/test_called.py`.
On the models of this package all are run; what the tests themselves skip they say with `pytest -rs`.
"""

_ONE_ATTENTION = "asks for eager and for sdpa attention; a linearised model has its own and refuses others by name"

LEFT_OUT = {
    "test_can_set_attention_dynamically": _ONE_ATTENTION,
    "test_eager_matches_sdpa_inference": _ONE_ATTENTION,
    "test_sdpa_can_dispatch_non_composite_models": _ONE_ATTENTION,
}

# These ask for eager attention because sdpa has no weights; ours has, so they are run with it.
EAGER_FOR_WEIGHTS = ("test_attention_outputs", "test_retain_grad_hidden_states_attentions")
