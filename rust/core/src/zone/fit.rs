//! How many limits a zone charges and holds at once: as many as the journal of a shard has room for.

use crate::limit::{Algorithm, Limit};
use crate::zone::journal::{MOST_RECORDS, RECORDS_OF_HELD_LIMIT, RECORDS_OF_HOLD, RECORDS_OF_LOG, RECORDS_OF_NUMBERS};
use crate::zone::storage::ZoneStorage;

impl ZoneStorage {
    /// Whether these limits can be charged together here; the error says what is too much.
    pub fn check_fit<'limit>(limits: impl Iterator<Item = &'limit Limit> + Clone) -> Result<(), String> {
        let is_log = |limit: &&Limit| limit.algorithm == Algorithm::SlidingLog;
        let logs = limits.clone().filter(is_log).count();
        let others = limits.clone().count() - logs;
        if logs * RECORDS_OF_LOG + others * RECORDS_OF_NUMBERS > MOST_RECORDS {
            return Err(format!(
                "{others} limits and {logs} sliding logs are decided together; a zone can charge {MOST_RECORDS} \
                 limits, where a log counts as {RECORDS_OF_LOG}"
            ));
        }
        Ok(())
    }

    /// Why this zone cannot hold `limits` limits at once, `logs` of them logs; None where it can.
    pub fn hold_error(&self, limits: usize, logs: usize) -> Option<String> {
        if self.layout().max_holds == 0 {
            return Some(
                "this shared zone does not hold what is settled later: make one with max_holds=, such as \
                 max_holds=10000, under another path or once its file is deleted"
                    .into(),
            );
        }
        let records = RECORDS_OF_HOLD + limits * RECORDS_OF_HELD_LIMIT + logs * RECORDS_OF_LOG;
        (records > MOST_RECORDS).then(|| {
            let most = (MOST_RECORDS - RECORDS_OF_HOLD) / RECORDS_OF_HELD_LIMIT;
            format!(
                "a shared zone holds up to {most} limits at once, a sliding log counts as one and a half; \
                 these are {limits} limits, {logs} of them logs"
            )
        })
    }
}
