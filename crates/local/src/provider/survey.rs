//! `survey`: whether the machine that follows another one could be made.

use super::{
    Local,
    claim::{Refusal, in_words},
};
use crate::place::{Place, PortSight, candidates, holder, look_at_port};
use egress_core::{Claim, ErrorClass, MachineKey, machine::WantedMachine};
use egress_provider::{Error, Operation, Result};

impl Local {
    pub(super) fn survey_next(
        &self,
        key: &MachineKey,
        claim: &Claim,
        wanted: &WantedMachine,
    ) -> Result<()> {
        let target = claim.slot.as_str();
        self.meets_preconditions(Operation::Survey, target, wanted)?;
        // What the machine that goes holds comes free with it.
        let own = (claim.provider == self.name)
            .then(|| Place::parse(&claim.slot))
            .flatten();
        let addresses = self.config.addresses();
        let mut refusals = Vec::new();
        for place in candidates(&self.config, &addresses, key, wanted.settings.port) {
            let socket = place.socket();
            if own.is_some_and(|own| own.socket() == socket) {
                return Ok(());
            }
            match look_at_port(socket) {
                Ok(PortSight::Free) => return Ok(()),
                sight => refusals.push((socket, Refusal::of(&sight))),
            }
        }
        let said = self.no_port(wanted.settings.port, &in_words(&refusals, holder));
        Err(Error::new(
            ErrorClass::Capacity,
            Operation::Survey,
            target,
            said,
        ))
    }
}
