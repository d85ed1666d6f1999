//! How many connections there may be: in all, and from one address.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

/// Counts open connections against the limits.
pub(crate) struct Places {
    limit: u32,
    per_client_limit: u32,
    taken: AtomicU32,
    /// Kept only where the limit of one client is below that of all.
    per_client: Option<Mutex<HashMap<IpAddr, u32>>>,
}

/// A limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    Total,
    Client,
}

impl Places {
    pub(crate) fn new(limit: u32, per_client_limit: u32) -> Self {
        Self {
            limit,
            per_client_limit,
            taken: AtomicU32::new(0),
            per_client: (per_client_limit < limit).then(Mutex::default),
        }
    }

    /// A place for one connection, given back when dropped.
    pub(crate) fn take(self: &Arc<Self>, client: IpAddr) -> Result<Place, Full> {
        if self.taken.fetch_add(1, Relaxed) >= self.limit {
            self.taken.fetch_sub(1, Relaxed);
            return Err(Full::Total);
        }
        if let Some(per_client) = &self.per_client {
            let mut counts = per_client.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry(client).or_insert(0);
            if *count >= self.per_client_limit {
                self.taken.fetch_sub(1, Relaxed);
                return Err(Full::Client);
            }
            *count += 1;
        }
        Ok(Place {
            places: Arc::clone(self),
            client,
        })
    }
}

/// One connection's place.
pub(crate) struct Place {
    places: Arc<Places>,
    client: IpAddr,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.fetch_sub(1, Relaxed);
        if let Some(per_client) = &self.places.per_client {
            let mut counts = per_client.lock().unwrap_or_else(PoisonError::into_inner);
            if let Entry::Occupied(mut entry) = counts.entry(self.client) {
                *entry.get_mut() -= 1;
                if *entry.get() == 0 {
                    entry.remove();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
