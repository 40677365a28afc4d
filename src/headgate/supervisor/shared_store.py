"""The store that several processes share."""

from __future__ import annotations

from headgate.errors import ConfigError
from headgate.policy.compiled import Policy
from headgate.policy.store_fit import check_fit, check_holds
from headgate.stores.guard.choice import with_fallback
from headgate.stores.protocol import Store
from headgate.stores.shared.default_zone import default_zone_url
from headgate.stores.url import open_store


def open_shared(policy: Policy, url: str | None, *, file_name: str, workers: int) -> tuple[Store, str]:
    """The store that `workers` processes share, and the URL of its zone where no store is named ("" otherwise).

    `url` replaces the policy's own store; without both, the store is the zone of this user and namespace. `file_name`
    is the name of the policy's file in messages. Raises ConfigError for a store in the memory of each process, and for
    one that cannot hold the policy's states.
    """
    zone = default_zone_url(policy.namespace) if url is None and not policy.names_store else ""
    store = open_store(zone or (policy.store if url is None else url))
    try:
        if store.in_process:
            place = f"{file_name}: store" if url is None else "--store"
            raise ConfigError(
                f"{place}: memory counts for each process alone, so {workers} workers would let {workers} times as "
                "much pass; name a shared:// store, or leave it out to get one"
            )
        check_holds(policy, lambda limits: with_fallback(store, store.bind(limits), limits, None))
        check_fit(policy, store)
    except BaseException:
        store.close()
        raise
    return store, zone
