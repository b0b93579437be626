"""Read the bias of a language model in its hidden states.

The package follows one stream, and a module imports only from those before it::

    data, cache                  texts; what was already measured
    embedded, hub, models        a name becomes a model
    prompts                      a text becomes token batches
    layout, hooks                read or edit the residual stream
    recall                       what was measured on a model before
    activations, generation      texts become arrays, prompts become samples
    direction                    geometry on arrays; knows no model
    statistics                   intervals and nulls; knows no model
    encoded, expressed, relation geometry or labels become the tables of a page; know no model
    proxy                        expressed bias by the next token
    endpoint, annotation         gender labels by a chat endpoint or a model
    neutral, debiasing,
    selfgenerated                what a model is aligned on
    finetune, capability,
    alignment                    LoRA training, what it cost, recipes
    protocol, ablation           the gender paper's conditions, and the direction removed
    markdown, results, figures   tables as text, tidy files with ``run.json``, pictures
    claims                       what a paper claims, and whether the tables show it
    run, pages                   check parameters and execute notebooks; render the book
"""

__version__ = "0.2.0"
