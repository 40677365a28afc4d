//! Notifies the callers that wait for places in flight when places are freed, in any process of the host.

use crate::any_table::AnyTable;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
use crate::clock::monotonic_us;

impl AnyTable {
    /// Places of keys with this place may be free: the first callers that wait for them in the table are notified.
    #[inline(always)]
    pub fn notify_freed(&self, place: u16) {
        match self {
            Self::Private(_) => {} // callers wait in this process alone, and `BoundLimits` calls them
            #[cfg(all(target_os = "linux", target_pointer_width = "64"))]
            Self::Shared(table) => {
                let (lines, map) = table.storage().lines();
                if lines.waited(map, usize::from(place)) {
                    lines.freed(map, usize::from(place), monotonic_us());
                }
            }
        }
        #[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
        let _ = place;
    }
}
