//! Conditions, compared with the fields of a subject beyond its method, host and path.

use crate::compiled::{ClientNetworks, Conditions};
use crate::extract::{header_value, sent_addresses};
use crate::networks::is_in;
use crate::subject::{Sent, Subject};
use crate::text::sent_text;
use crate::value::{NeedsPython, Value};

/// The name of a peer without an address.
const UNIX: &str = "unix";
/// The attributes of a call of a language model that name its model.
const MODEL: &str = "model";
const FULL_MODEL: &str = "full_model";

impl Conditions {
    /// Whether a subject is meant by its headers, its entries and its client's address.
    ///
    /// Of a header or an entry that was sent several times one value must match, and with `surely` every one. The
    /// lists of values and networks are sorted, see `sorted`.
    pub fn are_met<S: Subject>(&self, subject: &S, surely: bool) -> Result<bool, S::Error> {
        if let Some(clients) = &self.clients
            && !is_client(clients, subject)?
        {
            return Ok(false);
        }
        if let Some(entries) = &self.entries
            && !entries.are_met(subject, surely)?
        {
            return Ok(false);
        }
        if !self.models.is_empty() && !self.is_model(subject.attribute(MODEL)?, subject.attribute(FULL_MODEL)?) {
            return Ok(false);
        }
        for (name, values) in &self.headers {
            let Some(sent) = subject.header(name)? else {
                return Ok(false);
            };
            let Some(values) = values else {
                continue;
            };
            let is_meant = |text: &str| values.binary_search_by(|value| (**value).cmp(text)).is_ok();
            let met = match (header_value(name, subject)?, sent) {
                (Value::One(value), _) => is_meant(&value),
                (Value::Missing, _) => is_meant(""),
                (Value::Repeated, Sent::Several { lines, .. }) if surely => {
                    lines.iter().all(|line| is_meant(&sent_text(line)))
                }
                (Value::Repeated, Sent::Several { lines, .. }) => lines.iter().any(|line| is_meant(&sent_text(line))),
                (Value::Repeated, Sent::One(_)) => return Err(NeedsPython.into()),
            };
            if !met {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a model is meant by one of these names or beginnings.
    fn is_model(&self, model: &str, full_model: &str) -> bool {
        let is_meant = |wanted: &str, model: &str| match wanted.strip_suffix('*') {
            Some(beginning) => model.starts_with(beginning),
            None => model == wanted,
        };
        self.models.iter().any(|wanted| is_meant(wanted, model) || is_meant(wanted, full_model))
    }
}

/// Whether the client of a subject is in one of the networks.
///
/// A descriptor without an address does not stand for a Unix socket: its gateway does not report the client.
fn is_client<S: Subject>(clients: &ClientNetworks, subject: &S) -> Result<bool, S::Error> {
    let peer = subject.client_ip()?;
    Ok(match clients.source.rules.address(peer, sent_addresses(&clients.source, subject)?) {
        Some(address) => is_in(address, &clients.networks),
        None => clients.unix && (peer.is_empty() || peer == UNIX) && subject.entry(0)?.is_none(),
    })
}
