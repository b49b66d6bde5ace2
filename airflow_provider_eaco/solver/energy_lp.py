"""The configuration program solved by scipy's HiGHS (extra ``analysis``)."""

from __future__ import annotations

import numpy as np

from airflow_provider_eaco.core.energy.configuration import ConfigurationProgram, ConfigurationSolution
from airflow_provider_eaco.core.model.errors import SolverError


class HighsEnergySolver:
    """Adapter of the port :class:`~airflow_provider_eaco.core.ports.EnergySolver`."""

    def solve(
        self, program: ConfigurationProgram, mean_stretch: float | None = None, class_limits: bool = False
    ) -> ConfigurationSolution:
        """Return the least energy that does all work; see the port."""
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix, vstack

        work_s = program.work_s
        # Work in shares of the whole: HiGHS' tolerances are absolute, and traces have 1e9 work seconds.
        whole_s = float(work_s.sum())
        if whole_s <= 0:
            nothing = np.zeros(len(work_s))
            return ConfigurationSolution(0.0, np.zeros(len(program.members)), nothing, 1.0, nothing)
        rows, bounds = [csr_matrix(-program.progress)], [-work_s / whole_s]
        limited: list[int] = []
        if class_limits:
            limited = [i for i, c in enumerate(program.classes) if c.stretch_limit is not None]
            limits = np.array([program.classes[i].stretch_limit for i in limited], dtype=np.float64)
            rows.append(csr_matrix(program.presence[limited]))
            bounds.append(limits * work_s[limited] / whole_s)
        if mean_stretch is not None:
            rows.append(csr_matrix(program.presence.sum(axis=0, keepdims=True)))
            bounds.append(np.array([mean_stretch]))
        answer = linprog(
            program.power_w, A_ub=vstack(rows, format="csr"), b_ub=np.concatenate(bounds), method="highs"
        )
        if not answer.success:
            raise SolverError(f"the configuration program has no solution: {answer.message}")
        time_s = answer.x * whole_s
        prices_w = -np.asarray(answer.ineqlin.marginals)
        presence_w = np.full(len(work_s), 0.0 if mean_stretch is None else prices_w[-1])
        presence_w[limited] += prices_w[len(work_s) : len(work_s) + len(limited)]
        return ConfigurationSolution(
            energy_j=float(answer.fun) * whole_s,
            time_s=time_s,
            price_w=prices_w[: len(work_s)],
            mean_stretch=float((program.presence @ time_s).sum()) / whole_s,
            presence_w=presence_w,
        )
