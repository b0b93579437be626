"""Read the bias of a language model in its hidden states.

The package follows one stream, and a module imports only from those before it::

    data, cache                  texts; what was already measured
    embedded, hub, models        a name becomes a model
    prompts                      a text becomes token batches
    layout, hooks                read or edit the residual stream
    activations, generation      texts become arrays, prompts become samples
    direction                    geometry on arrays; knows no model
    statistics                   intervals and nulls; knows no model
    encoded                      both, for all blocks and concepts: the tables of a page; knows no model
    markdown, results, figures   tables as text, tidy files with ``run.json``, pictures
    run, pages                   check parameters and execute notebooks; render the book
"""

__version__ = "0.1.0"
