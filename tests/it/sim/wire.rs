//! A client's QUIC: an endpoint with one connection, and bytes that wait for their streams.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use corelay::wire::code;
use corelay::wire::version::Version;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, ConnectionId, DatagramEvent, Dir, EcnCodepoint,
    Endpoint, EndpointConfig, IdleTimeout, ReadError, StreamId, TransportConfig, VarInt,
    WriteError,
};

use super::random::Random;
use super::tls;

/// What a client allows the relay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    pub(super) receive_window: u32,
    pub(super) stream_window: u32,
    pub(super) uni_streams: u32,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { receive_window: 8 << 20, stream_window: 4 << 20, uni_streams: 10_000 }
    }
}

/// How a stream stands after it was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Open,
    Fin,
    /// With a plain code.
    Reset(u64),
}

#[derive(Default)]
struct Pending {
    bytes: Vec<u8>,
    sent: usize,
    fin: bool,
}

/// The QUIC of one client.
pub(super) struct Wire {
    endpoint: Endpoint,
    handle: ConnectionHandle,
    pub(super) conn: Connection,
    pending: BTreeMap<StreamId, Pending>,
    remote: SocketAddr,
}

fn transport(allow: Allowance) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport
        .receive_window(VarInt::from_u32(allow.receive_window))
        .stream_receive_window(VarInt::from_u32(allow.stream_window))
        .max_concurrent_uni_streams(VarInt::from_u32(allow.uni_streams))
        .max_concurrent_bidi_streams(VarInt::from_u32(1000))
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(10_000))))
        .keep_alive_interval(Some(Duration::from_secs(3)))
        .send_window(64 << 20)
        .enable_segmentation_offload(false)
        .allow_spin(false);
    transport
}

impl Wire {
    pub(super) fn new(
        now: Instant,
        remote: SocketAddr,
        version: Version,
        allow: Allowance,
        random: &mut Random,
    ) -> Self {
        let mut config = EndpointConfig::default();
        config.rng_seed(Some(random.bytes()));
        let mut endpoint = Endpoint::new(Arc::new(config), None, true, None);
        let crypto = QuicClientConfig::try_from(tls::client(version.alpn())).expect("suites");
        let mut client = ClientConfig::new(Arc::new(crypto));
        let first = random.bytes();
        client
            .transport_config(Arc::new(transport(allow)))
            .initial_dst_cid_provider(Arc::new(move || ConnectionId::new(&first[..8])));
        let (handle, conn) =
            endpoint.connect(now, client, remote, "localhost").expect("a valid remote");
        Self { endpoint, handle, conn, pending: BTreeMap::new(), remote }
    }

    /// A datagram of the relay.
    pub(super) fn receive(&mut self, now: Instant, ecn: u8, data: &[u8]) {
        let mut reply = Vec::new();
        let ecn = EcnCodepoint::from_bits(ecn);
        let data = BytesMut::from(data);
        match self.endpoint.handle(now, self.remote, None, ecn, data, &mut reply) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => self.conn.handle_event(event),
            Some(DatagramEvent::NewConnection(_)) => panic!("a relay does not connect"),
            // A stateless answer of the client's is not simulated.
            Some(DatagramEvent::Response(_)) | None => {}
        }
    }

    /// What leaves now: each datagram with its ECN bits.
    pub(super) fn transmit(&mut self, now: Instant, mut send: impl FnMut(u8, Vec<u8>)) {
        self.flush();
        loop {
            let mut data = Vec::new();
            let Some(transmit) = self.conn.poll_transmit(now, 1, &mut data) else { break };
            data.truncate(transmit.size);
            send(transmit.ecn.map_or(0, |ecn| ecn as u8), data);
        }
        while let Some(event) = self.conn.poll_endpoint_events() {
            if let Some(back) = self.endpoint.handle_event(self.handle, event) {
                self.conn.handle_event(back);
            }
        }
    }

    pub(super) fn open(&mut self, dir: Dir) -> Option<StreamId> {
        self.conn.streams().open(dir)
    }

    /// Sends bytes when the stream takes them, then its end.
    pub(super) fn say(&mut self, id: StreamId, bytes: &[u8], fin: bool) {
        let pending = self.pending.entry(id).or_default();
        pending.bytes.extend_from_slice(bytes);
        pending.fin |= fin;
    }

    pub(super) fn reset(&mut self, id: StreamId, plain: u64) {
        self.pending.remove(&id);
        let code = VarInt::from_u64(code::map(plain)).expect("mapped codes are varints");
        // Fails only on a stream that is closed already.
        let _ = self.conn.send_stream(id).reset(code);
    }

    fn flush(&mut self) {
        let conn = &mut self.conn;
        self.pending.retain(|id, pending| {
            let mut stream = conn.send_stream(*id);
            while pending.sent < pending.bytes.len() {
                match stream.write(&pending.bytes[pending.sent..]) {
                    Ok(taken) => pending.sent += taken,
                    Err(WriteError::Blocked) => return true,
                    Err(WriteError::Stopped(_) | WriteError::ClosedStream) => return false,
                }
            }
            pending.bytes.clear();
            pending.sent = 0;
            if pending.fin {
                // Fails only on a stream that was stopped.
                let _ = stream.finish();
            }
            false
        });
    }

    /// Appends what arrived on a stream.
    pub(super) fn read(&mut self, id: StreamId, out: &mut Vec<u8>) -> End {
        let mut stream = self.conn.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return End::Open };
        let end = loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => out.extend_from_slice(&chunk.bytes),
                Ok(None) => break End::Fin,
                Err(ReadError::Blocked) => break End::Open,
                Err(ReadError::Reset(code)) => break End::Reset(code::unmap(code.into_inner())),
            }
        };
        // New credit leaves with the next transmit.
        let _ = chunks.finalize();
        end
    }

    pub(super) fn close(&mut self, now: Instant, code: u64) {
        let code = VarInt::from_u64(code).expect("a small code");
        self.conn.close(now, code, Bytes::from_static(b"test"));
    }
}
