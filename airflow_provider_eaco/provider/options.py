"""Every option of the ``[eaco]`` section, as data: Airflow's configuration, settings and docs read this.

Imports nothing of Airflow, since ``get_provider_info`` is called before Airflow is configured. Values are
text, as in ``airflow.cfg``; :mod:`airflow_provider_eaco.provider.settings` parses and checks them.
"""

from __future__ import annotations

from dataclasses import dataclass

SECTION = "eaco"
VERSION_ADDED = "0.1.0"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: ``kind`` is Airflow's type name for it (string, integer, float)."""

    name: str
    kind: str
    default: str
    description: str
    example: str | None = None


OPTIONS: tuple[Option, ...] = (
    Option(
        "pools",
        "string",
        '{"eaco": {"mode": "share"}}',
        "The GPU pools, as a JSON object: pool name -> settings. A pool's name is also the name of the "
        "Airflow pool that routes tasks to it; tasks of every other Airflow pool go to the first one. "
        "Settings: mode (off: tasks run as before; observe: they run as before, what would have been decided "
        "is recorded, and `airflow eaco sampler` meters them; exclusive: GPUs are granted, never "
        "shared; share: the policy decides), nodes (list of shell patterns over node names), policy, "
        "ordering, spreading (pack, spread), max_residents, memory_margin_mib, "
        "utilisation_limit_pct, exclusive_priority, trial_limit_s, estimate_error, "
        "predictor (conservative, learned), reject_after_s, "
        "rules, ageing_s, reserve_after_s, fair_share, aligned, demand, strangers (alert, yield: what "
        "follows when somebody else uses a held GPU), memory_growth (warn, stop: what follows when a task "
        "beside others takes more GPU memory than it was admitted with); for policies that use them "
        "mean_stretch, "
        "prices (lp: needs scipy; greedy) and power_limits (off; advise: "
        "frontier says with each placement at which measured limit it would lose least; apply: GPUs are held "
        "to it, where that is permitted on all GPUs of the pool); "
        "energy_budget (an object with power_w: what the pool's nodes may draw, kwh_per_day: what tasks "
        "may use there in one day (UTC), and action: hold or warn) and shift (an object with max_h, "
        "horizon_h and factor: how long a shiftable task waits while a series is above factor times its "
        "mean of the next horizon_h hours).",
        '{"eaco": {"mode": "share", "policy": "eaco", "ordering": "fifo", "max_residents": 4}}',
    ),
    Option(
        "hold_window",
        "integer",
        "2000",
        "How many tasks one executor may hold while they wait for GPUs, at most 1000000. Held tasks take "
        "nothing of [core] parallelism.",
        "5000",
    ),
    Option(
        "backfill_priority",
        "integer",
        "0",
        "Added to the priority weight of tasks in the runs of a backfill when it is decided who is next on"
        " the GPUs. With 0 a backfill's runs come first under the ordering fifo, since they are the oldest;"
        " below 0 by more than the largest priority weight of its tasks every other run comes before them.",
        "-1000",
    ),
    Option(
        "default_max_stretch",
        "string",
        "1.10",
        "Limit of run time / exclusive run time for tasks that name none: a number of at least 1, or none"
        " for no limit.",
        "1.25",
    ),
    Option(
        "reject_after",
        "string",
        "300",
        "Seconds after which a task is failed that no GPU known to the pool could ever serve. A number of"
        " at least 0, or never. The wait keeps a restarting worker from failing tasks.",
        "never",
    ),
    Option(
        "rules",
        "string",
        "[]",
        "Rules that give a GPU request to tasks whose DAGs name none, as a JSON list. Each rule has match"
        " (any of pool, queue, dag_id, task_id, tag, operator; shell patterns) and request (the arguments"
        " of gpu_request). The first match wins.",
        '[{"match": {"dag_id": "train_*"}, "request": {"gpus": 1, "gpu_memory": "10GiB"}}]',
    ),
    Option(
        "trial_limit",
        "float",
        "14400",
        "Wall-clock seconds after which a trial that has not seen a complete unit of every member ends as"
        " not confirmed, for pools without a trial_limit_s of their own.",
        "7200",
    ),
    Option(
        "planner_ttl",
        "float",
        "30",
        "Seconds after which the planner lock of a scheduler that died expires and another one may plan.",
        "60",
    ),
    Option(
        "kill_grace",
        "float",
        "10",
        "Seconds between SIGTERM and SIGKILL when the processes of a task are ended.",
        "20",
    ),
    Option(
        "telemetry",
        "string",
        "auto",
        "What the GPUs of this machine are: nvml for real ones, read through NVIDIA's NVML; simulated for "
        "simulated_nodes alone; auto for real ones where NVML's library is there with a driver or lists a "
        "GPU, unless simulated_nodes lists nodes by name. With nvml a machine whose GPUs cannot be read "
        "offers none, and simulated nodes only if they are listed.",
        "nvml",
    ),
    Option(
        "gpu_memory",
        "string",
        "",
        "The memory of this machine's GPUs whose size NVML does not tell (unified memory), as a JSON object:"
        " GPU model as it is listed, or UUID -> size, such as 96GiB; a UUID goes before its model. Where NVML"
        " tells the size, that counts. Without either a GPU is listed, and takes no task that asks for memory"
        " and none beside another.",
        '{"GB10": "96GiB"}',
    ),
    Option(
        "node_power",
        "string",
        "",
        "Where the power of this whole machine can be read, as a JSON object: kind (redfish or prometheus),"
        " url (of the Redfish resource, or Prometheus' root) and for Prometheus query, which gives one number"
        " of W. It is held against the GPUs' counters once an hour, in the scheduler's log; credentials come"
        " from the user's .netrc. Empty: nothing is asked.",
        '{"kind": "redfish", "url": "https://bmc.example.org/redfish/v1/Chassis/1/Power"}',
    ),
    Option(
        "node_sleep",
        "string",
        "",
        "How nodes with a worker are put to sleep and woken, as a JSON object: node -> settings. sleep and "
        "wake are commands that the scheduler runs on its own machine, as lists of words, without a shell. "
        "idle_s: seconds without a task after which an idle node is put to sleep (null: only when a policy "
        "says so), wake_timeout_s: seconds within which a node that was woken has to report before it is "
        "drained (600), command_timeout_s: seconds after which a command is ended (30). Empty: no node is "
        "ever put to sleep.",
        '{"gpu-2": {"sleep": ["ssh", "gpu-2", "sudo", "systemctl", "suspend"], '
        '"wake": ["wakeonlan", "00:00:5e:00:53:01"], "idle_s": 900}}',
    ),
    Option(
        "carbon_g_per_kwh",
        "string",
        "",
        "Grams of CO2 equivalent that a kilowatt-hour of this site's electricity stands for: a number above"
        " 0. Energy records and `airflow eaco report` then name them. Empty: no such figure is shown; none is"
        " ever looked up or guessed.",
        "350",
    ),
    Option(
        "price_per_kwh",
        "string",
        "",
        "What a kilowatt-hour costs this site, in its currency: a number above 0. `airflow eaco report` then"
        " names costs. Empty: no cost is shown.",
        "0.28",
    ),
    Option(
        "currency",
        "string",
        "",
        "The currency of price_per_kwh, as it is to be shown after an amount.",
        "EUR",
    ),
    Option(
        "dispatch",
        "string",
        "local",
        "Where GPU tasks run: local for this machine's GPUs alone; celery for nodes that run `airflow eaco"
        " worker`, too. With celery each granted task goes to its node's own queue through the broker of"
        " [celery], and simulated_nodes = auto makes no node beside the schedulers.",
        "celery",
    ),
    Option(
        "node_timeout",
        "float",
        "60",
        "Seconds after which a node that has not reported takes nothing new, an order that its worker has not"
        " begun is taken back and placed anew, and another machine may report under its name. Workers report"
        " at least five times in it.",
        "120",
    ),
    Option(
        "node_api_url",
        "string",
        "",
        "Where workers reach the provider's API for nodes. Empty: /eaco/nodes beside [core]"
        " execution_api_server_url.",
        "https://airflow.example.org/eaco/nodes",
    ),
    Option(
        "price_series",
        "string",
        "",
        "What a kilowatt-hour costs over time: the absolute path of a CSV file, or a URL that gives one, with"
        " the columns time (ISO 8601 with offset) and value. Each value holds until the next row's time, the"
        " last row ends the series. Tasks that ask for it (shiftable) wait while the price is high. A file is"
        " read again when it changes, a URL every ten minutes. Empty, or nothing that can be read: nothing is"
        " shifted.",
        "/etc/airflow/price.csv",
    ),
    Option(
        "carbon_series",
        "string",
        "",
        "Grams of CO2 equivalent of a kilowatt-hour over time, in the form of price_series. With both, a"
        " shiftable task waits while either is high.",
        "https://grid.example.org/intensity.csv",
    ),
    Option(
        "max_shift",
        "float",
        "12",
        "Hours that a shiftable task waits at most after it was first queued, for pools without a shift of"
        " their own. A task with a deadline waits only while twice its run time alone still fits before it.",
        "6",
    ),
    Option(
        "simulated_nodes",
        "string",
        "auto",
        "Simulated GPU nodes of this machine: a JSON list of objects with name, gpus, gpu_model, "
        "gpu_memory and host_memory (gpus defaults to 8, gpu_model to V100, gpu_memory to that of the "
        "model), or auto for one node of eight V100, sim-HOST with this machine's name, where the machine"
        " has no NVIDIA driver or telemetry is simulated, or none. Names must differ over all machines of"
        " one Airflow.",
        '[{"name": "sim-1", "gpus": 8, "gpu_model": "V100", "gpu_memory": "16GiB"}]',
    ),
    Option(
        "simulated_time_scale",
        "float",
        "600",
        "Simulated seconds that pass on a simulated node in one second of wall-clock time.",
        "3600",
    ),
    Option(
        "simulated_state",
        "string",
        "",
        "File in which the simulated nodes keep their state; every scheduler and task of this machine "
        "must be able to write it. Empty: eaco/simulated.json under AIRFLOW_HOME.",
        "/var/lib/airflow/eaco/simulated.json",
    ),
    Option(
        "simulated_truth",
        "string",
        "[]",
        "How families really behave on simulated nodes, as a JSON list of rows that precede the built-in "
        "measured table. A row has families (list), gpu_model, gpu_count, unit_s (families with one "
        "member) or slowdowns (one per family), power_w, utilisation_pct and memory_mib.",
        '[{"families": ["mnist"], "gpu_model": "V100", "gpu_count": 1, "unit_s": 120, "power_w": 180, '
        '"utilisation_pct": 40, "memory_mib": 4096}]',
    ),
)

DEFAULTS: dict[str, str] = {option.name: option.default for option in OPTIONS}
EXAMPLES: dict[str, str] = {option.name: option.example or option.default for option in OPTIONS}
