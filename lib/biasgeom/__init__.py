"""Read the bias of a language model in its hidden states.

The package follows one stream, and a module imports only from those before it::

    data, cache            texts and what was already measured
    embedded, models, prompts   a name becomes a model, a text becomes token batches
    hooks                  read or edit the residual stream
    activations, generation   texts become arrays, prompts become samples
    direction              geometry on arrays; knows no model
    statistics             intervals and nulls; knows no model
    results, figures       tidy tables, ``run.json``, pictures
    run, pages             check parameters, execute notebooks, render the book
"""

__version__ = "0.1.0"
