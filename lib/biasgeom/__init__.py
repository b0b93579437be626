"""Read the bias of a language model in its hidden states.

The package follows one stream, and a module imports only from those before it::

    data, cache, names           texts; what was already measured; a model's name as a folder's, and as shown
    remote                       files of data sets on the hub
    sentences, statements        the ΔB paper's sentence sets; what its ends are fine-tuned on
    questions, rewrites,
    perturbations, parsing       what a judge is given to score, with a cue or without; a reply becomes a score
    catalogue                    the papers' models, and how to run each
    counting                     tokens that models read and wrote
    embedded, hub, activated,
    adapters, models             a name becomes a model; adapters that act from the assistant's turn on
    facts                        a model's size and licence, without its weights
    memory                       batches that fit: halved and tried again where memory ends
    prompts                      a text becomes token batches
    layout, hooks                read or edit the residual stream
    recall                       what was measured on a model before
    drawing, vllm_sampling       the next token by one uniform number; samples by vLLM
    activations, generation      texts become arrays, prompts become samples
    readouts                     a judge's states, scores and reply in one pass
    prefix, suffix               prompts read once; the blocks after a steered one, run again
    direction, relative          geometry on arrays; knows no model
    ledger, annealing            the strength that moves scores most; knows no model
    statistics, pairs            intervals and nulls; shifts beside changes; know no model
    landscape, controls, humans  what cues do to scores, and what else might; human ratings from their summaries
    substrate, maps, estimators,
    separability, geometry,
    shared_space                 where cues move a judge's states; know no model
    encoded, expressed, relation geometry or labels become the tables of a page; know no model
    proxy                        expressed bias by the next token
    pacing                       requests that keep a pace and come to an end
    endpoint, annotation         gender labels by a chat endpoint or a model
    neutral, debiasing,
    selfgenerated                what a model is aligned on
    training, finetune           LoRA and full fine-tuning
    capability, alignment        what alignment cost, its recipes
    protocol, ablation           the gender paper's conditions, and the direction removed
    merging                      between two fine-tuned models
    probe, sentiment             output bias of a small model
    topics, wildguard,
    decodingtrust, toxigen       the ΔB paper's benchmarks
    writers, rewriting,
    question_benchmarks, asked   texts and questions of the judge paper's kind, by a model or from the hub
    splits, spectrum             seven checkpoints from harmless to harmful
    audit, survey, robustness    ΔB of a pair, of all checkpoints, of every variant
    benchmarks, monitor          benchmarks over the checkpoints; ΔB while training
    judging, planted             a judge's scores; the judge whose biases are known
    steering, ground, attack,
    causal                       scores under steering; how strong, with what effect; is it this direction
    strengths, text_attack       a cue written stronger, or taken out of a text
    erasure, defence, defended,
    folded                       biased scores set right: the edits, one defence, all of them, cross-validated
    prediction, boosting,
    ranking, detectors           features of a state; who tells a degraded score from them, and how well
    zeroshot                     language models asked whether a score will be degraded
    card                         a judge on one page
    markdown, timing, results    tables as text; seconds; tidy files with ``run.json``
    figures, figures_pairs,
    figures_judge,
    figures_judge_geometry       pictures
    claims, claims_gender,
    claims_delta_b,
    claims_judge_geometry,
    claims_judge_causal,
    claims_judge_defence,
    claims_judge_prediction,
    claims_judge                 what a paper claims, and whether the tables show it
    run, request                 check parameters and execute notebooks; what a command line asks for
    access, costs, plan,
    forecast                     what a sweep will need: models and data sets, tokens and time, all of it, as text
    cluster, sweep               models × notebooks, here or on SLURM
    redaction, inspection,
    archive                      what does not leave this machine; is an archive sound; results packed and read back
    launch, release              links to Binder and Colab; the book in one file
    relabel, shelf, fragments    labels of a second model; models that have results; what pages include
    comparison,
    figures_comparison,
    model_page, comparison_page  models side by side; a card a model
    sphinx_book, pages           render the book
"""

import warnings

# tqdm's bars are text here on purpose: widgets would be lost in the rendered pages. A notebook imports this first.
warnings.filterwarnings("ignore", "IProgress not found")

__version__ = "0.6.2"
