//! A request that was passed on to the Python service, until the service is done with it.
//!
//! It takes its turn until then, even if its client has left meanwhile: what waits at the Python service is bounded by
//! turns, and clients that reset their requests cannot fill its socket with others.

use std::future::Future;
use std::pin::Pin;

use http::Response;
use hyper::body::Incoming;
use hyper_util::client::legacy::ResponseFuture;
use hyper_util::client::legacy::connect::CaptureConnection;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;

use crate::connection::Held;
use crate::private::notify_departure;

/// A request that was passed on. Dropped before its response has arrived, it goes on without its client.
pub struct PassedOn(Option<Waiting>);

struct Waiting {
    response: ResponseFuture,
    connected: CaptureConnection,
    turn: OwnedSemaphorePermit,
    /// Its bytes, which may not have been sent yet.
    _held: Held,
}

impl PassedOn {
    /// A request that takes a turn.
    pub fn new(response: ResponseFuture, connected: CaptureConnection, turn: OwnedSemaphorePermit, held: Held) -> Self {
        Self(Some(Waiting { response, connected, turn, _held: held }))
    }

    /// Its response, with the turn; None where the Python service gives none. When the client `leaves`, the service is
    /// notified.
    pub async fn response(
        mut self,
        leaves: impl Future<Output = ()>,
    ) -> Option<(Response<Incoming>, OwnedSemaphorePermit)> {
        let waiting = self.0.as_mut()?;
        let connected = waiting.connected.clone();
        let departure = async {
            leaves.await;
            notify_departure(connected).await;
        };
        let mut response = Pin::new(&mut waiting.response);
        let response = tokio::select! {
            biased;
            response = response.as_mut() => response,
            () = departure => response.await,
        };
        let waiting = self.0.take()?;
        Some((response.ok()?, waiting.turn))
    }
}

impl Drop for PassedOn {
    /// Notify the Python service that nobody waits for the response, and keep the turn until it is done.
    fn drop(&mut self) {
        let Some(waiting) = self.0.take() else {
            return;
        };
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            let Waiting { mut response, connected, turn: _turn, _held } = waiting; // here, so that the task has all of it
            let mut response = Pin::new(&mut response);
            let departure = notify_departure(connected);
            tokio::select! {
                biased;
                _ = response.as_mut() => {}
                () = departure => drop(response.await),
            }
        });
    }
}
