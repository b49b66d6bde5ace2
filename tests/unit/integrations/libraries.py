"""A tiny training in each library: what the guide's examples leave to the user, and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

Array = npt.NDArray[np.float64]
NEEDS_TORCH = "is not installed: make test-integrations installs it and runs this test"


def rows() -> tuple[Array, Array]:
    """Return 48 rows of 4 features, and what to learn of each."""
    x = np.random.default_rng(0).normal(size=(48, 4))
    return x, x @ np.array([1.0, -2.0, 0.5, 3.0])


def needed(name: str) -> Any:
    """Return the library, or skip the test with what to do."""
    return pytest.importorskip(name, reason=f"{name} {NEEDS_TORCH}", exc_type=ImportError)


class PyTorch:
    """Dropout and momentum: a start that lost the chance or the optimizer's state ends elsewhere."""

    heading = "PyTorch"

    def __init__(self, folder: Path) -> None:
        torch = needed("torch")
        torch.manual_seed(0)
        x, y = (torch.tensor(each, dtype=torch.float32) for each in rows())
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
        self.names = {
            "folder": folder,
            "model": self.model,
            "optimizer": torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9),
            "criterion": torch.nn.MSELoss(),
            "batches": [(x[n : n + 16], y[n : n + 16, None]) for n in (0, 16, 32)],
        }

    def result(self) -> Array:
        return np.concatenate([each.detach().numpy().ravel() for each in self.model.parameters()])


class Lightning:
    """A learning rate that halves each epoch, and a minimum of epochs, which must not keep it."""

    heading = "Lightning"

    def __init__(self, folder: Path) -> None:
        torch, lightning = needed("torch"), needed("lightning.pytorch")

        class Line(lightning.LightningModule):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)

            def training_step(self, batch: Any, _index: int) -> Any:
                loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
                self.log("loss", loss)
                return loss

            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)
                return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]

        torch.manual_seed(0)
        x, y = (torch.tensor(each, dtype=torch.float32) for each in rows())
        self.model = Line()
        quiet = {"enable_progress_bar": False, "enable_model_summary": False}
        self.names = {
            "folder": folder,
            "model": self.model,
            "batches": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y[:, None]), 16),
            "options": {"accelerator": "cpu", "logger": False, "min_epochs": 4, **quiet},
        }

    def result(self) -> Array:
        return np.concatenate([each.detach().numpy().ravel() for each in self.model.parameters()])


class Transformers:
    """The Trainer's own shuffling and learning-rate schedule."""

    heading = "Transformers"

    def __init__(self, folder: Path) -> None:
        torch = needed("torch")
        needed("transformers")
        needed("accelerate")

        class Line(torch.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)

            def forward(self, x: Any, labels: Any) -> Any:
                return {"loss": torch.nn.functional.mse_loss(self.layer(x)[:, 0], labels)}

        torch.manual_seed(0)
        x, y = (torch.tensor(each, dtype=torch.float32) for each in rows())
        self.model = Line()
        self.names = {
            "folder": folder,
            "model": self.model,
            "dataset": [{"x": row, "labels": label} for row, label in zip(x, y, strict=True)],
            "options": {
                "per_device_train_batch_size": 16,
                "learning_rate": 0.05,
                "use_cpu": True,
                "report_to": [],
                "disable_tqdm": True,
                "dataloader_pin_memory": False,
                "save_strategy": "no",
            },
        }

    def result(self) -> Array:
        return np.concatenate([each.detach().numpy().ravel() for each in self.model.parameters()])


class LightGBM:
    """Twenty small trees."""

    heading = "LightGBM"

    def __init__(self, folder: Path) -> None:
        lightgbm = needed("lightgbm")
        x, y = rows()
        parameters = {
            "objective": "regression",
            "num_threads": 1,
            "verbosity": -1,
            "min_data_in_leaf": 5,
            "seed": 0,
        }
        self.names = {"folder": folder, "parameters": parameters, "data": lightgbm.Dataset(x, y)}

    def result(self) -> Array:
        assert self.names["booster"].num_trees() == 20
        return np.asarray(self.names["booster"].predict(rows()[0]))


class XGBoost:
    """Twenty small trees."""

    heading = "XGBoost"

    def __init__(self, folder: Path) -> None:
        self._xgboost = needed("xgboost")
        self.names = {
            "folder": folder,
            "parameters": {"nthread": 1, "max_depth": 3},
            "data": self._xgboost.DMatrix(*rows()),
        }

    def result(self) -> Array:
        assert self.names["booster"].num_boosted_rounds() == 20
        return np.asarray(self.names["booster"].predict(self._xgboost.DMatrix(rows()[0])))


class ScikitLearn:
    """Twenty small trees."""

    heading = "scikit-learn"

    def __init__(self, folder: Path) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor

        folder.mkdir(exist_ok=True)
        x, y = rows()
        model = HistGradientBoostingRegressor(min_samples_leaf=5, early_stopping=False, random_state=0)
        self.names = {"folder": folder, "x": x, "y": y, "model": model}

    def result(self) -> Array:
        assert self.names["model"].n_iter_ == 20
        return np.asarray(self.names["model"].predict(rows()[0]))
