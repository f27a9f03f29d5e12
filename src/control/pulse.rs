//! Whether the shard still turns: it is asked often, and one that does not answer is reported once,
//! and again when it goes on.

use std::time::Duration;

/// How often the shard is asked.
pub(super) const EVERY: Duration = Duration::from_millis(250);
/// Beats without an answer after which it counts as stalled: within a second.
const STALLED: u32 = 3;

/// What a beat asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Beat {
    /// Ask the shard.
    Ask,
    /// It has not answered yet.
    Wait,
    /// It has not answered for so long that it counts as stalled from now on.
    Stalled,
}

/// Beats since the shard was asked; 0 when it has answered.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    waited: u32,
}

impl Pulse {
    /// Called each [`EVERY`].
    pub(super) fn beat(&mut self) -> Beat {
        self.waited = self.waited.saturating_add(1);
        match self.waited {
            1 => Beat::Ask,
            waited if waited == STALLED + 1 => Beat::Stalled,
            _ => Beat::Wait,
        }
    }

    /// The shard answered: about how long it took, if it counted as stalled.
    pub(super) fn answered(&mut self) -> Option<Duration> {
        let waited = std::mem::take(&mut self.waited);
        (waited > STALLED).then(|| EVERY * (waited - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_answers_is_asked_again_and_never_reported() {
        let mut pulse = Pulse::default();
        for late in 0..3 {
            assert_eq!(pulse.beat(), Beat::Ask);
            for _ in 0..late {
                assert_eq!(pulse.beat(), Beat::Wait);
            }
            assert_eq!(pulse.answered(), None);
        }
    }

    #[test]
    fn a_stall_is_reported_once_within_a_second_and_its_end_once() {
        let mut pulse = Pulse::default();
        let beats: Vec<Beat> = (0..6).map(|_| pulse.beat()).collect();
        use Beat::{Ask, Stalled, Wait};
        assert_eq!(beats, [Ask, Wait, Wait, Stalled, Wait, Wait]);
        assert_eq!(pulse.answered(), Some(EVERY * 5));
        assert_eq!((pulse.answered(), pulse.beat()), (None, Ask));
    }
}
