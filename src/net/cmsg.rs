//! Control messages: ECN, train length and local address, beside the bytes of a datagram.
//!
//! Owns their layout: a header of length (one word, header included), level and kind (two `int`),
//! then the value, each message padded to a word. All of it is read and written as bytes within
//! a slice, so neither alignment nor a length the kernel reports is trusted.
//!
//! ```text
//! | length | level | kind | value .. | pad | length | ..
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::addr::field;

/// Room for the control messages of one datagram. A socket of both families reports up to five,
/// 144 bytes together.
pub const CONTROL_BYTES: usize = 256;

const WORD: usize = size_of::<usize>();
const INT: usize = size_of::<libc::c_int>();
const HEADER: usize = WORD + 2 * INT;
/// The ECN bits of a traffic class.
const ECN_MASK: u8 = 0b11;

/// Room for control messages, aligned as the kernel's structures are.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control(pub(super) [u8; CONTROL_BYTES]);

/// What the control messages of a received message say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// The two ECN bits; 0 where the kernel says nothing.
    pub ecn: u8,
    /// The address of ours it was sent to, in its plain form.
    pub local_ip: Option<IpAddr>,
    /// Bytes of each datagram but the last, when the kernel joined some.
    pub stride: Option<usize>,
}

/// Reads the control messages of a received message. Unknown and malformed ones are skipped.
pub fn parse(mut bytes: &[u8]) -> Received {
    let mut received = Received::default();
    while let Some((level, kind, value, rest)) = split(bytes) {
        bytes = rest;
        match (level, kind) {
            (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                received.ecn = class(value) & ECN_MASK;
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                received.local_ip = local_v4(value).or(received.local_ip);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let ip = field::<16>(value, 0).map(Ipv6Addr::from);
                let plain = ip.map(|ip| IpAddr::V6(ip).to_canonical());
                received.local_ip = received.local_ip.or(plain);
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let stride = field(value, 0).map(libc::c_int::from_ne_bytes);
                received.stride = stride.and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
            }
            _ => {}
        }
    }
    received
}

/// Writes the control messages of one send to an IPv4 (`v6` false) or IPv6 receiver; returns how
/// many bytes they take. A zero `ecn` is the socket's default and needs none. A source of the
/// other family is left out.
pub fn encode(
    out: &mut [u8; CONTROL_BYTES],
    v6: bool,
    ecn: u8,
    src: Option<IpAddr>,
    segment: Option<u16>,
) -> usize {
    let mut at = 0;
    if ecn & ECN_MASK != 0 {
        let value = libc::c_int::from(ecn & ECN_MASK).to_ne_bytes();
        at = match v6 {
            false => put(out, at, (libc::IPPROTO_IP, libc::IP_TOS), &value),
            true => put(out, at, (libc::IPPROTO_IPV6, libc::IPV6_TCLASS), &value),
        };
    }
    match src.map(|ip| ip.to_canonical()) {
        Some(IpAddr::V4(ip)) if !v6 => {
            // Interface index (0: by route), source address, and a field only receivers read.
            let mut value = [0; 12];
            value[4..8].copy_from_slice(&ip.octets());
            at = put(out, at, (libc::IPPROTO_IP, libc::IP_PKTINFO), &value);
        }
        Some(IpAddr::V6(ip)) if v6 => {
            // Source address, interface index (0: by route).
            let mut value = [0; 20];
            value[..16].copy_from_slice(&ip.octets());
            at = put(out, at, (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO), &value);
        }
        _ => {}
    }
    match segment {
        Some(bytes) => put(out, at, (libc::SOL_UDP, libc::UDP_SEGMENT), &bytes.to_ne_bytes()),
        None => at,
    }
}

/// Appends one message at `at`; returns where the next begins.
fn put(
    out: &mut [u8; CONTROL_BYTES],
    at: usize,
    (level, kind): (libc::c_int, libc::c_int),
    value: &[u8],
) -> usize {
    let len = HEADER + value.len();
    let end = at + len.next_multiple_of(WORD);
    let message = &mut out[at..end];
    message[..WORD].copy_from_slice(&len.to_ne_bytes());
    message[WORD..WORD + INT].copy_from_slice(&level.to_ne_bytes());
    message[WORD + INT..HEADER].copy_from_slice(&kind.to_ne_bytes());
    message[HEADER..len].copy_from_slice(value);
    message[len..].fill(0);
    end
}

/// Level, kind and value of the first message, and what follows it.
fn split(bytes: &[u8]) -> Option<(libc::c_int, libc::c_int, &[u8], &[u8])> {
    let len = usize::from_ne_bytes(field(bytes, 0)?);
    let level = libc::c_int::from_ne_bytes(field(bytes, WORD)?);
    let kind = libc::c_int::from_ne_bytes(field(bytes, WORD + INT)?);
    let value = bytes.get(HEADER..len)?;
    Some((level, kind, value, bytes.get(len.next_multiple_of(WORD)..).unwrap_or_default()))
}

/// The traffic class, which comes as one byte (IPv4) or as an `int` (IPv6).
fn class(value: &[u8]) -> u8 {
    match field(value, 0).map(libc::c_int::from_ne_bytes) {
        Some(wide) => u8::try_from(wide & 0xff).unwrap_or_default(),
        None => value.first().copied().unwrap_or_default(),
    }
}

/// The address to answer from; the header's destination where the kernel gives none.
fn local_v4(value: &[u8]) -> Option<IpAddr> {
    let answer = Ipv4Addr::from(field::<4>(value, 4)?);
    let header = Ipv4Addr::from(field::<4>(value, 8)?);
    Some(IpAddr::V4(if answer.is_unspecified() { header } else { answer }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `encode` wrote, with the train length turned into what a receiver is told.
    fn round(v6: bool, ecn: u8, src: Option<&str>) -> Received {
        let mut out = [0xff; CONTROL_BYTES];
        let src = src.map(|ip| ip.parse().expect("an address"));
        let len = encode(&mut out, v6, ecn, src, None);
        let stride = 1200_i32.to_ne_bytes();
        let end = put(&mut out, len, (libc::SOL_UDP, libc::UDP_GRO), &stride);
        parse(&out[..end])
    }

    #[test]
    fn every_message_comes_back() {
        let v4 = "127.0.0.2";
        // A receiver reads the source field as the address to answer from.
        for (v6, src) in [(false, v4), (true, "2001:db8::7")] {
            let got = round(v6, 0b10, Some(src));
            let ip = Some(src.parse().expect("an address"));
            assert_eq!(got, Received { ecn: 0b10, local_ip: ip, stride: Some(1200) });
        }
        assert_eq!(round(true, 0, Some(v4)).local_ip, None, "other family is left out");
        assert_eq!(round(false, 0, Some("::ffff:127.0.0.2")).local_ip, v4.parse().ok());
    }

    #[test]
    fn lengths_and_layout_are_the_kernels() {
        let mut out = [0xff; CONTROL_BYTES];
        assert_eq!(encode(&mut out, false, 0, None, None), 0);
        assert_eq!(encode(&mut out, false, 0, None, Some(1200)), 24);
        assert_eq!(out[..8], 18_usize.to_ne_bytes());
        assert_eq!(out[16..24], [0xb0, 4, 0, 0, 0, 0, 0, 0]);
        let src = Some(IpAddr::V6(Ipv6Addr::LOCALHOST));
        assert_eq!(encode(&mut out, true, 3, src, Some(1)), 24 + 40 + 24);
    }

    #[test]
    fn one_byte_class_and_missing_answer_address() {
        let mut out = [0; CONTROL_BYTES];
        let at = put(&mut out, 0, (libc::IPPROTO_IP, libc::IP_TOS), &[0b1111_1101]);
        let info = [1, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 9];
        let end = put(&mut out, at, (libc::IPPROTO_IP, libc::IP_PKTINFO), &info);
        let got = parse(&out[..end]);
        assert_eq!((got.ecn, got.local_ip), (1, "10.0.0.9".parse().ok()));
    }

    #[test]
    fn hostile_lengths_end_the_reading() {
        let mut out = [0; CONTROL_BYTES];
        let end = put(&mut out, 0, (libc::IPPROTO_IP, libc::IP_TOS), &[3]);
        for len in [0, 1, HEADER - 1, end + 1, usize::MAX, usize::MAX - 7] {
            out[..WORD].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(parse(&out[..end]), Received::default(), "length {len}");
        }
        for cut in 0..HEADER {
            assert_eq!(parse(&out[..cut]), Received::default());
        }
    }
}
