//! Machines of others, in every shape that must be told apart from ours.

use crate::conformance::{
    Miss, Refusal, Stranger,
    trial::{Machine, Trial},
    verdict::Verdict,
};
use egress_core::{Installation, MachineUid, Mark, Slot};

/// What lies at a slot that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// No mark, some name.
    Unmarked,
    /// A valid mark of ours for another key.
    AnotherKey,
    /// A valid mark of another installation.
    AnotherInstallation,
    /// A template that bears what would be our mark.
    Template,
    /// A copy of our machine: its mark is for another slot.
    Copy,
}

impl Shape {
    pub(super) const ALL: [Self; 5] = [
        Self::Unmarked,
        Self::AnotherKey,
        Self::AnotherInstallation,
        Self::Template,
        Self::Copy,
    ];

    /// The stranger in this shape at the slot of `machine`.
    pub(super) fn at(self, trial: &Trial, machine: &Machine) -> Verdict<Stranger> {
        let mut mark = trial.mark_of(machine);
        let other: MachineUid = format!("{}-someone-else", trial.prefix)
            .parse()
            .map_err(|e| Miss::Failed(format!("{e}")))?;
        match self {
            Self::Unmarked | Self::Template => {}
            Self::AnotherKey => mark.uid = other,
            Self::AnotherInstallation => {
                mark.uid = other;
                mark.installation = "someone-else"
                    .parse::<Installation>()
                    .map_err(|e| Miss::Failed(format!("{e}")))?;
            }
            Self::Copy => mark.slot = Slot::new(format!("{}-elsewhere", mark.slot)),
        }
        Ok(Stranger {
            name: format!("{}-stranger", trial.prefix),
            text: (self != Self::Unmarked).then(|| written(&mark)),
            template: self == Self::Template,
        })
    }
}

/// A mark as it stands on a machine, below a note of a person.
pub(super) fn written(mark: &Mark) -> String {
    format!("a note above the mark\n{mark}")
}

/// A machine that bears our name and no mark.
pub(super) fn namesake(machine: &Machine) -> Stranger {
    Stranger {
        name: machine.key.name().to_owned(),
        text: None,
        template: false,
    }
}

/// A claimed machine whose slot a stranger of each shape took, where the harness can place it.
/// The third value describes the stranger.
pub(super) async fn taken_slots(trial: &Trial) -> Verdict<Vec<(Shape, Machine, Option<String>)>> {
    let mut taken = Vec::new();
    let mut last = None;
    for shape in Shape::ALL {
        let machine = trial.claimed(&format!("{shape:?}").to_lowercase()).await?;
        let stranger = shape.at(trial, &machine)?;
        match trial.world()?.place(&machine.claim.slot, &stranger).await {
            Ok(()) => {
                trial.disown(&machine.claim.slot);
                trial.catch_up().await?;
                let before = trial.world()?.describe(&machine.claim.slot).await?;
                taken.push((shape, machine, before));
            }
            Err(refusal @ Refusal::NotOffered(_)) => last = Some(refusal),
            Err(refusal) => return Err(refusal.into()),
        }
    }
    match last {
        Some(refusal) if taken.is_empty() => Err(refusal.into()),
        _ => Ok(taken),
    }
}

/// Nobody touched what lies at the machine's slot.
pub(super) async fn untouched(
    trial: &Trial,
    machine: &Machine,
    before: Option<&String>,
    by: &str,
) -> Verdict {
    let after = trial.world()?.describe(&machine.claim.slot).await?;
    if after.as_ref() == before {
        return Ok(());
    }
    Err(Miss::Failed(format!(
        "{by} changed a stranger's machine: {before:?} became {after:?}"
    )))
}
