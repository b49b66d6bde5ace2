"""The contract of the ledger port, sentence by sentence; every adapter runs it as a subclass.

A subclass hands in the fixture ``ledger``: an empty ledger on the fixture ``clock``.
"""

from __future__ import annotations

from tests.contract.grant_suite import GrantContract
from tests.contract.inventory_suite import InventoryContract
from tests.contract.lease_suite import LeaseContract
from tests.contract.past_suite import PastContract
from tests.contract.queue_suite import QueueContract


class LedgerContract(InventoryContract, QueueContract, GrantContract, LeaseContract, PastContract):
    """What holds for every :class:`Ledger`."""
