"""Choose depth and learning rate by cross validation over the labelled nodes of one graph.

Cross validation hides nodes, not parts of the graph: the estimator holds the whole graph, and what
is split into folds are the *numbers* of the labelled nodes. A fold is fitted with the labels of the
other folds alone, and scored on its own.
"""

import argparse

import numpy as np
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from deepgat import DeepGATClassifier, load_graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="csbm")
    parser.add_argument("--epochs", type=int, default=100)
    arguments = parser.parse_args()

    data = load_graph(arguments.dataset).graph
    labelled = np.flatnonzero(data.train_mask | data.val_mask)  # the test nodes stay out of it
    y = data.y.numpy()

    classifier = DeepGATClassifier(graph=data, epochs=arguments.epochs, random_state=0)
    search = GridSearchCV(
        classifier,
        {"num_layers": [2, 4], "lr": [0.01, 0.05]},
        cv=StratifiedKFold(3, shuffle=True, random_state=0),
    )
    search.fit(labelled, y[labelled])

    for settings, score in zip(
        search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
    ):
        print(f"{100 * score:5.1f}%  {settings}")
    test = np.flatnonzero(data.test_mask)
    print(f"best: {search.best_params_}; test accuracy {100 * search.score(test, y[test]):.1f}%")


if __name__ == "__main__":
    main()
