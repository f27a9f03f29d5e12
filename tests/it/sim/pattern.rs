//! What frames hold: bytes that say which frame of which group of whose track they belong to, so
//! that a viewer can tell every byte right from wrong without having seen the publisher.

/// Period of the filling; prime, so that no power of two hides a shift.
const PERIOD: usize = 251;

/// Which frame it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Who made it.
    pub(super) source: u8,
    /// Of which track; see [`tag`].
    pub(super) tag: u8,
    pub(super) seq: u64,
    pub(super) number: u64,
    pub(super) timestamp: u64,
}

/// A track's mark.
pub(super) fn tag(broadcast: &str, track: &str) -> u8 {
    let bytes = broadcast.bytes().chain([b'/']).chain(track.bytes());
    bytes.fold(7, |sum: u8, byte| sum.wrapping_mul(31).wrapping_add(byte))
}

impl Frame {
    /// Appends `len` bytes of this frame.
    pub(super) fn fill(&self, len: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[self.source, self.tag]);
        out.extend_from_slice(&self.seq.to_be_bytes());
        out.extend_from_slice(&self.number.to_be_bytes());
        out.extend_from_slice(&self.timestamp.to_be_bytes());
        let shift = self.seq.wrapping_mul(7).wrapping_add(self.number.wrapping_mul(13));
        let shift = usize::try_from(shift % PERIOD as u64).expect("below the period");
        let mut table = [0; PERIOD];
        for (at, byte) in table.iter_mut().enumerate() {
            *byte = u8::try_from((at + shift) % PERIOD).expect("below 256");
        }
        while out.len() - start < len {
            out.extend_from_slice(&table);
        }
        out.truncate(start + len);
    }

    /// True when `bytes` begin this frame's content.
    pub(super) fn begins(&self, bytes: &[u8], scratch: &mut Vec<u8>) -> bool {
        scratch.clear();
        self.fill(bytes.len(), scratch);
        scratch == bytes
    }
}
