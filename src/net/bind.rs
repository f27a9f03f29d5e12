//! Opening a UDP socket, and saying what to do when that fails.
//!
//! Owns the socket options. One that the kernel lacks costs a capability, never the socket; only
//! what binding itself needs can fail. No address or port is shared: a taken port is an error.

use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::mmsg::Options;
use super::sys::set_option;
use super::{Caps, SEGMENTS_MAX};

/// A joined train may be as large as a datagram; smaller buffers would cut it.
const TRAIN_BYTES_MAX: usize = 65_535;

/// A socket could not be opened. Its text names the remedy.
#[derive(Debug)]
pub struct BindError {
    addr: SocketAddr,
    source: io::Error,
}

impl BindError {
    /// The host has no IPv6, so that an IPv4 address may be tried instead.
    pub fn is_no_ipv6(&self) -> bool {
        let ip = self.addr.ip();
        let any_host_has_it = ip.is_unspecified() || ip.is_loopback();
        let code = self.source.raw_os_error();
        self.addr.is_ipv6()
            && (code == Some(libc::EAFNOSUPPORT)
                || code == Some(libc::EADDRNOTAVAIL) && any_host_has_it)
    }

    /// The kernel's error.
    pub fn io(&self) -> &io::Error {
        &self.source
    }
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (addr, port) = (self.addr, self.addr.port());
        write!(f, "cannot listen on udp {addr}: ")?;
        if self.is_no_ipv6() {
            return write!(f, "this host has no IPv6; listen on IPv4, such as 0.0.0.0:{port}");
        }
        match self.source.raw_os_error() {
            Some(libc::EADDRINUSE) => write!(
                f,
                "the port is taken; choose another --listen or stop the process that holds it: \
                 `ss -lunp sport = :{port}`"
            ),
            Some(libc::EACCES) if port < 1024 => write!(
                f,
                "ports below 1024 need a privilege; choose a higher --listen or grant \
                 CAP_NET_BIND_SERVICE"
            ),
            Some(libc::EADDRNOTAVAIL) => write!(
                f,
                "no interface of this host has this address; choose one that `ip address` \
                 lists, or listen on all"
            ),
            Some(libc::EMFILE | libc::ENFILE) => {
                write!(f, "no file descriptor is left; raise the limit (`ulimit -n`)")
            }
            _ => write!(f, "{}", self.source),
        }
    }
}

impl std::error::Error for BindError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Opens a socket at `addr`; `[::]` serves IPv4 too, any other IPv6 address only itself.
pub fn bind(addr: SocketAddr, options: &Options) -> Result<UdpSocket, BindError> {
    open(addr, options).map_err(|source| BindError { addr, source })
}

fn open(addr: SocketAddr, options: &Options) -> io::Result<UdpSocket> {
    let kind = Type::DGRAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(addr), kind, Some(Protocol::UDP))?;
    if addr.is_ipv6() {
        socket.set_only_v6(!addr.ip().is_unspecified())?;
    }
    size_buffers(&socket, options.socket_buffer_bytes);
    // Set before binding, so that the first datagrams already carry what the options ask for.
    keep_whole(socket.as_fd(), addr.is_ipv6());
    enable(socket.as_fd(), addr.is_ipv6(), options);
    socket.bind(&SockAddr::from(addr))?;
    Ok(socket.into())
}

/// Asks for large kernel buffers, past the system's limit where we may.
fn size_buffers(socket: &Socket, bytes: usize) {
    let (fd, value) = (socket.as_fd(), libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX));
    for (force, plain, what) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, "net.core.rmem_max"),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, "net.core.wmem_max"),
    ] {
        if set_option(fd, libc::SOL_SOCKET, force, value).is_ok() {
            continue;
        }
        if let Err(error) = set_option(fd, libc::SOL_SOCKET, plain, value) {
            tracing::warn!(%error, "cannot size a socket buffer; see {what}");
        }
    }
    // The kernel reports twice what it was asked for.
    let received = socket.recv_buffer_size().unwrap_or(0) / 2;
    if received < bytes {
        tracing::warn!(
            wanted = bytes,
            got = received,
            "small receive buffer: raise net.core.rmem_max or grant CAP_NET_ADMIN"
        );
    }
}

/// Forbids fragments and ignores what the kernel learned about the path: a datagram larger than
/// the interface allows is refused, so that QUIC can probe the path itself.
fn keep_whole(fd: BorrowedFd<'_>, v6: bool) {
    let probe = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
    let probe_v6 = (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE);
    let whole_v6 = (libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 1);
    let wanted: &[_] = if v6 { &[probe, probe_v6, whole_v6] } else { &[probe] };
    for &(level, name, value) in wanted {
        if let Err(error) = set_option(fd, level, name, value) {
            tracing::debug!(%error, level, name, "cannot forbid fragments");
        }
    }
}

/// Turns on what receiving and sending can carry; returns what the kernel agreed to.
pub(super) fn enable(fd: BorrowedFd<'_>, v6: bool, options: &Options) -> Caps {
    let on = |level, name| set_option(fd, level, name, 1).is_ok();
    // The IPv4 options of an IPv6 socket matter only where it serves both; there they are a gain.
    let tos = on(libc::IPPROTO_IP, libc::IP_RECVTOS);
    let info = on(libc::IPPROTO_IP, libc::IP_PKTINFO);
    let ecn = if v6 { on(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS) } else { tos };
    let pktinfo = if v6 { on(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO) } else { info };
    let gro = options.rx_buffer_bytes >= TRAIN_BYTES_MAX && on(libc::SOL_UDP, libc::UDP_GRO);
    // Zero is the default, no splitting; that it can be set says that the kernel knows how.
    let gso = options.gso && set_option(fd, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
    Caps { gso_segments: if gso { SEGMENTS_MAX } else { 1 }, gro, ecn, pktinfo }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(addr: &str, code: i32) -> (String, bool) {
        let addr = addr.parse().expect("an address");
        let error = BindError { addr, source: io::Error::from_raw_os_error(code) };
        (error.to_string(), error.is_no_ipv6())
    }

    #[test]
    fn each_refusal_names_its_remedy() {
        let cases = [
            ("0.0.0.0:443", libc::EADDRINUSE, "`ss -lunp sport = :443`", false),
            ("0.0.0.0:443", libc::EACCES, "CAP_NET_BIND_SERVICE", false),
            ("192.0.2.1:4443", libc::EADDRNOTAVAIL, "`ip address`", false),
            ("[2001:db8::1]:4443", libc::EADDRNOTAVAIL, "`ip address`", false),
            ("[::1]:4443", libc::EADDRNOTAVAIL, "no IPv6", true),
            ("[::]:4443", libc::EAFNOSUPPORT, "0.0.0.0:4443", true),
            ("0.0.0.0:4443", libc::EMFILE, "ulimit", false),
            ("0.0.0.0:4443", libc::EACCES, "ermission", false),
        ];
        for (addr, code, part, no_ipv6) in cases {
            let (text, is_no_ipv6) = text(addr, code);
            assert!(text.contains(addr) && text.contains(part), "{text}");
            assert_eq!(is_no_ipv6, no_ipv6, "{text}");
        }
    }
}
