"""The mean of the last models in place of the last one (Polyak and Ruppert): post-processing of what was released.

Proof that it costs no privacy. Every model of the mean was broadcast, or could have been, under the plan's guarantee;
their mean is a function of them. The noise that each model carries averages out over them.
"""

from tacit.core import tree
from tacit.core.contract import Server, Shared, Tree


def average(server: Server, public: Tree, done: int, last: int, rounds: int) -> tuple[Server, Tree]:
    """The server after `done` of all rounds, and the public state with its model in the mean of the `last` ones.

    When all rounds are done that mean is the model.
    """
    counted = done - max(0, rounds - last)
    if not last or counted < 1:
        return server, public
    model, mean = server.view.model, tree.strip("average", public)
    mean = tree.axpy(1 / counted, tree.sub(model, mean), mean) if counted > 1 else model
    if done == rounds:
        server = server._replace(view=Shared(model | mean, server.view.extra))
    return server, public | tree.prefix("average", mean)
