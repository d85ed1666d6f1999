//! Looking at one slot, wherever its machine is now.

use super::{
    call::Call,
    descriptions::DomainView,
    hosts::Host,
    power::{Power, power},
};
use crate::client::{Domain, Failure, Kind, Session, xml};
use egress_core::{MachineKey, Slot, machine::Whose};
use egress_provider::Result;
use tokio::time::Instant;
use uuid::Uuid;

/// `virDomainState` of a domain that is off.
const SHUT_OFF: i32 = 5;

/// A domain at a slot.
#[derive(Debug)]
pub(super) struct Machine<'a> {
    /// When it was asked for.
    pub(super) at: Instant,
    pub(super) host: &'a Host,
    pub(super) domain: Domain,
    pub(super) view: DomainView,
    pub(super) power: Power,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.told())
    }
}

impl<'a> Call<'a> {
    /// What has this UUID on one host.
    pub(super) async fn look(
        &self,
        session: &Session,
        host: &'a Host,
        uuid: Uuid,
    ) -> Result<Option<Machine<'a>>> {
        let at = Instant::now();
        let read = async {
            let domain = session.domain(uuid).await?;
            let text = session.domain_xml(&domain, xml::NOW).await?;
            let state = session.domain_state(&domain).await?;
            let saved = state.state == SHUT_OFF && session.has_managed_save(&domain).await?;
            Ok::<_, Failure>((domain, text, power(state, saved)))
        };
        match read.await {
            Ok((domain, text, power)) => {
                let view = DomainView::read(&text).map_err(|why| self.unreadable(&why))?;
                Ok(Some(Machine {
                    at,
                    host,
                    domain,
                    view,
                    power,
                }))
            }
            Err(failure) if failure.kind == Kind::NoDomain => Ok(None),
            Err(failure) => Err(self.failed(failure)),
        }
    }

    /// Whose a machine is, for the key whose slot this is.
    pub(super) fn whose_at(&self, key: &MachineKey, slot: &Slot, machine: &Machine<'_>) -> Whose {
        let text = machine.view.mark.as_deref();
        self.provider
            .whose(key, Some(slot), machine.host, &machine.domain, text)
    }
}
