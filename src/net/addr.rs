//! Socket addresses in the kernel's layout, written and read as bytes.
//!
//! Owns the forms of an address: what the kernel stores for an IPv4 or IPv6 socket, and the plain
//! form everything else sees. An address handed out is never IPv4 mapped to IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Bytes of the largest address, that of IPv6, as the kernel counts them.
pub(super) const NAME_LEN: libc::socklen_t = 28;
/// The same as a size.
pub(super) const NAME_BYTES: usize = NAME_LEN as usize;
/// Bytes of an IPv4 address.
const NAME_BYTES_V4: usize = 16;

/// Room for one address, aligned as the kernel's structures are.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Name(pub(super) [u8; NAME_BYTES]);

/// Writes `addr`; returns how many bytes it takes.
pub(super) fn encode(addr: SocketAddr, name: &mut Name) -> usize {
    let out = &mut name.0;
    *out = [0; NAME_BYTES];
    out[2..4].copy_from_slice(&addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(v4) => {
            out[..2].copy_from_slice(&family(libc::AF_INET));
            out[4..8].copy_from_slice(&v4.ip().octets());
            NAME_BYTES_V4
        }
        SocketAddr::V6(v6) => {
            out[..2].copy_from_slice(&family(libc::AF_INET6));
            out[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
            out[8..24].copy_from_slice(&v6.ip().octets());
            out[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            NAME_BYTES
        }
    }
}

/// Reads an address; `None` when it is short or of another family.
pub(super) fn parse(bytes: &[u8]) -> Option<SocketAddr> {
    let kind = *bytes.first_chunk::<2>()?;
    let port = u16::from_be_bytes(field(bytes, 2)?);
    if kind == family(libc::AF_INET) {
        return Some(SocketAddr::from((Ipv4Addr::from(field::<4>(bytes, 4)?), port)));
    }
    if kind != family(libc::AF_INET6) {
        return None;
    }
    let flow = u32::from_ne_bytes(field(bytes, 4)?);
    let ip = Ipv6Addr::from(field::<16>(bytes, 8)?);
    let scope = u32::from_ne_bytes(field(bytes, 24)?);
    Some(canonical(SocketAddr::V6(SocketAddrV6::new(ip, port, flow, scope))))
}

/// The plain form: IPv4 mapped to IPv6 becomes IPv4.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::from((ip, addr.port())),
        IpAddr::V6(_) => addr,
    }
}

/// The form a socket wants: an IPv6 socket reaches IPv4 by mapped addresses.
pub(super) fn for_socket(addr: SocketAddr, socket_v6: bool) -> SocketAddr {
    match canonical(addr) {
        SocketAddr::V4(v4) if socket_v6 => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
        plain => plain,
    }
}

/// The `N` bytes at `at`, `None` when there are fewer.
pub(super) fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn family(constant: libc::c_int) -> [u8; 2] {
    libc::sa_family_t::try_from(constant).expect("families are small").to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(addr: &str) -> SocketAddr {
        let mut name = Name([0xff; NAME_BYTES]);
        let len = encode(addr.parse().expect("an address"), &mut name);
        // The kernel pads an IPv4 address; its last meaningful byte is the eighth.
        let needed = if len == NAME_BYTES_V4 { 8 } else { len };
        assert_eq!(parse(&name.0[..needed - 1]), None, "a short address is refused");
        parse(&name.0[..len]).expect("readable")
    }

    #[test]
    fn addresses_survive_and_mapped_ones_become_plain() {
        for text in ["127.0.0.2:4443", "[2001:db8::1]:1", "[fe80::1%3]:65535"] {
            assert_eq!(round(text), text.parse().expect("an address"));
        }
        let plain = "10.1.2.3:9".parse().expect("an address");
        assert_eq!(round("[::ffff:10.1.2.3]:9"), plain);
        assert_eq!(for_socket(plain, true).to_string(), "[::ffff:10.1.2.3]:9");
        assert_eq!(for_socket(for_socket(plain, true), false), plain);
        assert_eq!(parse(&[1, 0, 0, 0]), None);
    }
}
