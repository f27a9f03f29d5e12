//! Layout of our connection ids, from which a datagram's shard can be read without any table.
//!
//! ```text
//! | config and length (1) | shard (2, big endian) | generation (1) | random (5) |
//! ```
//! Level 0. Nine bytes; a later scheme (QUIC-LB, a server id) changes offsets here and nowhere
//! else. Invariant: `shard` answers only for ids that `encode` could have made.

use crate::name::ShardId;

/// Bytes of an id.
pub const CID_LEN: usize = 9;
/// First byte: layout 0, length without this byte in the low bits, as QUIC-LB self-encodes it.
const FIRST: u8 = 8;

/// The id of `shard` in this process `generation` with five bytes of randomness.
pub fn encode(shard: ShardId, generation: u8, random: [u8; 5]) -> [u8; CID_LEN] {
    let [high, low] = shard.0.to_be_bytes();
    let [a, b, c, d, e] = random;
    [FIRST, high, low, generation, a, b, c, d, e]
}

/// The shard that an id names; `None` when it is none of ours.
pub fn shard(cid: &[u8]) -> Option<ShardId> {
    match cid {
        [FIRST, high, low, _, _, _, _, _, _] => Some(ShardId(u16::from_be_bytes([*high, *low]))),
        _ => None,
    }
}
