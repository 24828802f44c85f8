"""Training by a recipe, in rounds, each of which can be the last for now."""

import json
import math
import time

import keras
import numpy as np
from common import cosine_schedule
from common import draw_dropout
from common import require_same_run
from recipes import networks
from recipes import record
from recipes.data import TASKS
from recipes.history import best_round
from recipes.measurements import MEASUREMENTS
from recipes.measurements import WATCHED
from recipes.recipe import what_trains
from recipes.tasks import HELD_OUT

from keras_linrec.files import replacing
from keras_linrec.optimizers import ParameterGroups
from keras_linrec.saving import BackupAndRestore
from keras_linrec.saving import save_model


def train(name, recipe, seed, options):
    """Train, or go on, and write what came of it. Whether it is finished."""
    task = TASKS[recipe.task](options, seed, **recipe.task_arguments)
    task.hold_out()
    rounds = Rounds(task, recipe, seed)
    folder = options.folder / name / f"{keras.backend.backend()}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    progress = Progress(name, recipe, rounds, folder, options)
    require_same_run(folder, {**what_trains(recipe), "held_out": HELD_OUT})
    if progress.is_finished():
        print(f"{name}, seed {seed}: finished before, in {folder}.")
        return True
    keras.utils.set_random_seed(seed)
    model = networks.build(task, recipe.layers)
    compile_model(model, task, make_optimizer(recipe, len(rounds)))
    model.fit(
        rounds,
        epochs=recipe.rounds,
        # Shuffling would change the order after an interruption.
        shuffle=False,
        callbacks=[
            progress,
            BackupAndRestore(folder / "backup", delete_checkpoint=False),
        ],
        verbose=0,
    )
    return progress.is_finished()


def compile_model(model, task, optimizer=None):
    model.compile(optimizer, task.loss, metrics=list(task.metrics))


def make_optimizer(recipe, steps):
    name, arguments = recipe.optimizer
    rate = recipe.learning_rate
    if recipe.schedule == "cosine":
        # It rises for a tenth of the steps that it then falls for.
        rate = cosine_schedule(rate, round(recipe.rounds * steps / 1.1))
    optimizer = getattr(keras.optimizers, name)(rate, **arguments)
    if recipe.groups:
        optimizer = ParameterGroups(optimizer, recipe.groups)
    return optimizer


def test(model, batches):
    """The losses and metrics on batches of a task, by name."""
    return model.evaluate(Tests(batches), verbose=0, return_dict=True)


class Rounds(keras.utils.PyDataset):
    """The batches of a round.

    Attributes:
        round: integer, the round, which determines the batches.
    """

    def __init__(self, task, recipe, seed):
        super().__init__()
        self.task = task
        self.batch_size = recipe.batch_size
        self.steps = recipe.steps or task.steps_of_epoch(recipe.batch_size)
        self.seed = seed
        self.round = 0

    def __len__(self):
        return self.steps

    def __getitem__(self, step):
        number = self.round * self.steps + step
        return self.task.batch(self.seed, number, self.batch_size)


class Tests(keras.utils.PyDataset):
    """The batches of a test, or of what is held out."""

    def __init__(self, batches):
        super().__init__()
        self.batches = list(batches)

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


class Progress(keras.callbacks.Callback):
    """Records the rounds, validates the model, and stops when it is time.

    The weights of the best round by what is held out are kept. They are tested
    once, at the end.

    It comes before `BackupAndRestore`: a round that was recorded and not
    backed up is trained, and recorded, again.

    Attributes:
        history: list of dictionaries, one for each round. Times are those of
            training alone, added up over all processes. A run may go on
            without the accelerator that it began with.
    """

    def __init__(self, name, recipe, rounds, folder, options):
        super().__init__()
        self.name = name
        self.recipe = recipe
        self.rounds = rounds
        self.options = options
        self.path = folder / "history.json"
        self.chosen = folder / "chosen.npz"
        self.history = []
        if self.path.exists():
            self.history = json.loads(self.path.read_text())
        self.begin = time.perf_counter()

    def on_epoch_begin(self, epoch, logs=None):
        self.rounds.round = epoch
        del self.history[epoch:]
        if self.recipe.schedule == "error":
            self.model.optimizer.learning_rate = self._rate_by_error()
        draw_dropout(self.model, self.rounds.seed, epoch)
        self.clocks = time.perf_counter(), time.process_time()

    def _rate_by_error(self):
        """The learning rate, which falls with the square of the error."""
        highest = self.recipe.learning_rate
        if not self.history:
            return highest
        # Twice the goal is the error at the start.
        share = self.history[-1]["loss"] / (2 * self.recipe.goal)
        return highest * min(share, 1.0) ** 2

    def on_epoch_end(self, epoch, logs=None):
        before = self.history[-1] if self.history else {}
        clocks = time.perf_counter(), time.process_time()
        row = {
            "round": epoch + 1,
            "images": (epoch + 1) * len(self.rounds) * self.rounds.batch_size,
        }
        for key, begin, end in zip(
            ("seconds", "cpu_seconds"), self.clocks, clocks
        ):
            row[key] = before.get(key, 0.0) + end - begin
        if accelerator := record.accelerator():
            row["accelerator"] = accelerator
        row |= {key: float(value) for key, value in logs.items()}
        self.history.append(row)
        is_due = (epoch + 1) % self.recipe.test_every == 0
        if is_due or epoch + 1 == self.recipe.rounds:
            validated = test(self.model, self.rounds.task.validations())
            row |= {f"validation_{k}": float(v) for k, v in validated.items()}
            if best_round(self.recipe.figure, self.history) == epoch:
                self._choose()
            if self.recipe.watched:
                watch = WATCHED[self.recipe.watched]
                row |= watch(self.model, self.rounds.task)
            self._publish()
        # Last, so that a run that is finished here has been published.
        with replacing(self.path) as path, open(path, "w") as file:
            json.dump(self.history, file)
        self._print(row)
        minutes = (time.perf_counter() - self.begin) / 60
        out_of_time = self.options.minutes and minutes > self.options.minutes
        if self.is_finished() or out_of_time:
            self.model.stop_training = True

    def is_finished(self):
        """Whether the last round was recorded, or the goal reached."""
        if not self.history:
            return False
        goal = self.recipe.goal
        validated = self.history[-1].get("validation_loss", math.inf)
        reached = goal is not None and validated < goal
        return reached or len(self.history) >= self.recipe.rounds

    def _choose(self):
        """Keep the weights of this round."""
        with replacing(self.chosen) as path, open(path, "wb") as file:
            np.savez(file, *self.model.get_weights())

    def _test(self):
        """Take the weights that were chosen, and test them, once."""
        with np.load(self.chosen) as file:
            self.model.set_weights(list(file.values()))
        tested = test(self.model, self.rounds.task.tests())
        chosen = best_round(self.recipe.figure, self.history)
        return {
            "round": self.history[chosen]["round"],
            **{key: record.rounded(float(v)) for key, v in tested.items()},
        }

    def _publish(self):
        """Write the run so far, and the model of the first seed."""
        measured, tested = {}, {}
        if self.is_finished():
            tested = {"test": self._test()}
            for kind in self.recipe.measurements:
                measured |= MEASUREMENTS[kind](self.model, self.rounds.task)
        run = {
            "seed": self.rounds.seed,
            "parameters": self.model.count_params(),
            "finished": self.is_finished(),
            **tested,
            "measurements": measured,
            **record.circumstances(),
            "history": record.columns(self.history),
        }
        record.add(self.options.output, self.name, self.recipe, run)
        if self.rounds.seed == self.recipe.seeds[0]:
            fresh = networks.build(self.rounds.task, self.recipe.layers)
            # Without the optimizer's state.
            fresh.set_weights(self.model.get_weights())
            save_model(fresh, self.options.output / f"{self.name}.keras")

    def _print(self, row):
        parts = [f"{self.name}, seed {self.rounds.seed}"]
        parts.append(f"round {row['round']} of {self.recipe.rounds}")
        names = ("loss", "accuracy", "validation_loss", "validation_accuracy")
        for key in names:
            if key in row:
                parts.append(f"{key.replace('_', ' ')} {row[key]:.4f}")
        parts.append(f"{row['seconds'] / 60:.1f} minutes")
        parts.append(f"{math.ceil(self._minutes_left())} left at most")
        print(", ".join(parts), flush=True)

    def _minutes_left(self):
        """Those of the remaining rounds, at the pace so far."""
        row = self.history[-1]
        left = self.recipe.rounds - row["round"]
        return row["seconds"] / 60 / row["round"] * left
