//! How fast the world behind a provider runs. On a hypervisor its time is ours; a simulator may run
//! faster, and a bench that tests over it does not wait for what is long past there.

use std::time::Duration;
use tokio::time::Instant;

/// How much faster than time the world runs.
#[derive(Clone, Copy, Debug)]
pub struct Pace(f64);

impl Default for Pace {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Pace {
    /// So many times as fast; never slower than time.
    pub fn times(speed: f64) -> Self {
        Self(speed.max(1.0))
    }
    /// How long ago a moment of ours is in the world.
    pub fn since(self, moment: Instant) -> Duration {
        moment.elapsed().mul_f64(self.0)
    }
    /// How long to wait until so much time has passed in the world.
    pub fn wait(self, time: Duration) -> Duration {
        time.div_f64(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_fast_world_has_lived_longer_and_is_waited_for_less() {
        let moment = Instant::now();
        tokio::time::advance(Duration::from_secs(3)).await;
        let second = Duration::from_secs(1);
        for (pace, lived, wait) in [
            (Pace::default(), 3, second),
            (Pace::times(0.1), 3, second),
            (Pace::times(20.0), 60, second / 20),
        ] {
            assert_eq!(pace.since(moment), Duration::from_secs(lived));
            assert_eq!(pace.wait(second), wait);
        }
    }
}
