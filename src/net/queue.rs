//! One queued send and how it is cut into messages for the kernel.
//!
//! Owns the progress of a send: which bytes are gone, whether its train is sent apart, what was
//! left out after a refusal. A socket learns from a refusal only when a changed message goes
//! through where the unchanged one did not, so that a vanished source address or a smaller path
//! does not cost the socket its trains.

use super::addr;
use super::sys::Outgoing;
use super::{Caps, Send, Slot};

/// What is left out of a send whose control messages the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trim {
    /// Nothing.
    Nothing,
    /// The source address.
    Src,
    /// The source address and the ECN bits.
    SrcAndEcn,
}

/// One send that waits for the kernel.
pub(super) struct Queued {
    pub(super) slot: Slot,
    pub(super) send: Send,
    /// Bytes that are gone.
    pub(super) offset: usize,
    /// The train goes as single datagrams.
    pub(super) split: bool,
    /// The train was refused and none of its datagrams went through yet.
    pub(super) suspect: bool,
    pub(super) trim: Trim,
    /// Flushes that ended here for want of kernel buffers.
    pub(super) tries: u32,
}

impl Queued {
    pub(super) fn new(slot: Slot, send: Send) -> Self {
        let trim = Trim::Nothing;
        Self { slot, send, offset: 0, split: false, suspect: false, trim, tries: 0 }
    }

    /// Bytes of one full message: the whole send, a train the socket can split, or one datagram.
    fn stride(&self, gso_segments: usize) -> usize {
        match self.send.segment {
            None => self.send.len,
            Some(segment) if self.split => segment,
            Some(segment) => segment * gso_segments,
        }
    }

    /// Bytes of the next message.
    pub(super) fn next_bytes(&self, gso_segments: usize) -> usize {
        self.stride(gso_segments).min(self.send.len - self.offset)
    }

    /// Datagrams in a message of `bytes` bytes.
    pub(super) fn datagrams(&self, bytes: usize) -> usize {
        self.send.segment.map_or(1, |segment| bytes.div_ceil(segment))
    }

    /// The next message relies on the kernel to split it.
    pub(super) fn is_train(&self, gso_segments: usize) -> bool {
        self.datagrams(self.next_bytes(gso_segments)) > 1
    }

    /// Everything went.
    pub(super) fn is_done(&self) -> bool {
        self.offset >= self.send.len
    }

    /// The source address that is sent along, if any.
    pub(super) fn src(&self, caps: &Caps) -> Option<std::net::IpAddr> {
        self.send.src.filter(|_| caps.pktinfo && self.trim == Trim::Nothing)
    }

    /// The ECN bits that are sent along.
    pub(super) fn ecn(&self, caps: &Caps) -> u8 {
        if caps.ecn && self.trim != Trim::SrcAndEcn { self.send.ecn } else { 0 }
    }

    /// Leaves out one thing more; false when there was nothing to leave out.
    pub(super) fn trim_more(&mut self, caps: &Caps) -> bool {
        self.trim = match (self.src(caps), self.ecn(caps)) {
            (Some(_), _) => Trim::Src,
            (None, 1..) => Trim::SrcAndEcn,
            (None, 0) => return false,
        };
        true
    }

    /// The messages that are left, in order. `buf` is the slot's buffer.
    pub(super) fn messages<'a>(
        &'a self,
        buf: &'a [u8],
        caps: Caps,
        socket_v6: bool,
    ) -> impl Iterator<Item = Outgoing<'a>> {
        let (stride, len) = (self.stride(caps.gso_segments), self.send.len);
        let (to, src, ecn) =
            (addr::for_socket(self.send.to, socket_v6), self.src(&caps), self.ecn(&caps));
        (self.offset..len).step_by(stride).map(move |at| {
            let data = &buf[at..len.min(at + stride)];
            let segment = self.send.segment.filter(|&segment| segment < data.len());
            let segment = segment.and_then(|bytes| u16::try_from(bytes).ok());
            Outgoing { to, src, ecn, segment, data }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPS: Caps = Caps { gso_segments: 4, gro: true, ecn: true, pktinfo: true };

    fn queued(segment: Option<usize>) -> Queued {
        let to: std::net::SocketAddr = "10.0.0.1:9".parse().expect("an address");
        let src = Some(to.ip());
        Queued::new(Slot(0), Send { socket: 0, to, src, ecn: 2, segment, len: 95 })
    }

    fn cuts(queued: &Queued) -> Vec<(usize, Option<u16>)> {
        let buf = [7; 100];
        queued.messages(&buf, CAPS, false).map(|m| (m.data.len(), m.segment)).collect()
    }

    #[test]
    fn a_train_is_cut_to_what_the_socket_takes() {
        assert_eq!(cuts(&queued(None)), [(95, None)]);
        assert_eq!(cuts(&queued(Some(95))), [(95, None)]);
        assert_eq!(cuts(&queued(Some(30))), [(95, Some(30))]);
        let mut train = queued(Some(15));
        assert_eq!(cuts(&train), [(60, Some(15)), (35, Some(15))]);
        train.offset = train.next_bytes(4);
        assert_eq!((train.next_bytes(4), train.datagrams(35)), (35, 3));
        train.split = true;
        assert_eq!(cuts(&train), [(15, None), (15, None), (5, None)]);
    }

    #[test]
    fn source_goes_before_ecn() {
        let mut send = queued(None);
        assert!(send.trim_more(&CAPS));
        assert_eq!((send.src(&CAPS), send.ecn(&CAPS)), (None, 2));
        assert!(send.trim_more(&CAPS));
        assert_eq!((send.src(&CAPS), send.ecn(&CAPS)), (None, 0));
        assert!(!send.trim_more(&CAPS));
    }
}
