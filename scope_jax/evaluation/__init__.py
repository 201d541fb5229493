"""Evaluation: the answers of a model to sets of questions, measured.

    question         a row: a question with correct answers, or a task with a rubric
    evaluation set   questions with the way they are sampled and measured, a table of [[evaluate.sets]]
    suite            a benchmark in configs/exams: an evaluation set with a prompt of its own (`--exam`)
    exam             how a game answers and measures questions: policy, prompt, parser, default measures
    answer           one sampled reply to a question; a question has as many as the set has samples
    measure          a number for each answer, averaged; a count is summed
    judge, grader    the model that compares an answer with a correct one, the model that reads it by criteria
    record           what is written of an answer
    metric           <kind>/<set>/<name>, from the records of a set

Every evaluation ends in `evaluate.evaluate_sets`: during training, of a run, a folder or an endpoint, on a card's sets
or on suites, and a replay. `measuring` has the measures of answers, `metrics` the means of a set, `suites` the prompts
and parsers of benchmarks, `weights` the way from a folder into an engine, `evaluations` the file of a run.
"""
