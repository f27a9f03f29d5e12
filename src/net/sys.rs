//! Every raw kernel call of the net, behind safe functions.
//!
//! Ownership: a batch owns the arrays its calls need (headers, address and control room, receive
//! buffers) in `Vec`s that are sized when it is built and never grow or shrink, so the pointers
//! between them, taken from `Vec::as_mut_ptr` once, stay valid until the batch is dropped, also
//! when the batch itself moves. Nothing here outlives a call: the kernel keeps no pointer after
//! `recvmmsg` or `sendmmsg` returns. No drop order is required.

#![expect(unsafe_code, reason = "this file holds the raw calls of the net")]

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::addr::{self, NAME_BYTES, NAME_LEN, Name};
use super::cmsg::{self, CONTROL_BYTES, Control};

/// The calls a net makes per batch; replaced in tests to script the kernel's answers.
pub trait Kernel {
    /// Receives up to `count` messages into the front of `batch` without waiting; returns how
    /// many came. Fails only when none did.
    fn recv(
        &mut self,
        fd: BorrowedFd<'_>,
        batch: &mut RecvBatch,
        count: usize,
    ) -> io::Result<usize>;

    /// Sends as many of `messages` as `batch` has room for, in order, without waiting; returns
    /// how many the kernel took. An error is about the first message; that of a later one shows
    /// when the next call begins with it.
    fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        batch: &mut SendBatch,
        messages: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize>;
}

/// The kernel we run on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linux;

/// One message to send, as the kernel wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing<'a> {
    /// The receiver; IPv4 mapped to IPv6 on an IPv6 socket.
    pub to: SocketAddr,
    /// The address to send from.
    pub src: Option<IpAddr>,
    /// The two ECN bits.
    pub ecn: u8,
    /// Bytes of each datagram but the last, for a train.
    pub segment: Option<u16>,
    /// The bytes.
    pub data: &'a [u8],
}

/// One received message, as the kernel left it.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    /// The sender, `None` when it is of no family we know.
    pub from: Option<SocketAddr>,
    /// The control messages, unread.
    pub control: &'a [u8],
    /// The bytes.
    pub data: &'a [u8],
    /// The kernel cut the bytes or the control messages short.
    pub truncated: bool,
}

/// The arrays and buffers of `recvmmsg`.
pub struct RecvBatch {
    headers: Vec<libc::mmsghdr>,
    /// Pointed to by `headers`.
    _vectors: Vec<libc::iovec>,
    names: Vec<Name>,
    controls: Vec<Control>,
    /// One stretch of `buffer_bytes` per message.
    buffers: Vec<u8>,
    buffer_bytes: usize,
    /// Headers at the front that the kernel wrote to since they were last reset.
    used: usize,
}

impl RecvBatch {
    /// Room for `messages` messages of `buffer_bytes` each.
    pub fn new(messages: usize, buffer_bytes: usize) -> Self {
        let mut names = vec![Name([0; NAME_BYTES]); messages];
        let mut controls = vec![Control([0; CONTROL_BYTES]); messages];
        let mut buffers = vec![0; messages * buffer_bytes];
        let (base, mut vectors) = (buffers.as_mut_ptr(), Vec::with_capacity(messages));
        for i in 0..messages {
            let iov_base = base.wrapping_add(i * buffer_bytes).cast();
            vectors.push(libc::iovec { iov_base, iov_len: buffer_bytes });
        }
        let headers = headers(&mut names, &mut controls, &mut vectors);
        let used = messages;
        Self { headers, _vectors: vectors, names, controls, buffers, buffer_bytes, used }
    }

    /// Most messages one call can receive.
    pub fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Message `index` of the last call, which must have received it.
    pub fn message(&self, index: usize) -> Incoming<'_> {
        assert!(index < self.used, "message {index} was not received");
        let header = &self.headers[index];
        let name_len = (header.msg_hdr.msg_namelen as usize).min(NAME_BYTES);
        let control_len = header.msg_hdr.msg_controllen.min(CONTROL_BYTES);
        let data_len = (header.msg_len as usize).min(self.buffer_bytes);
        let start = index * self.buffer_bytes;
        Incoming {
            from: addr::parse(&self.names[index].0[..name_len]),
            control: &self.controls[index].0[..control_len],
            data: &self.buffers[start..start + data_len],
            truncated: header.msg_hdr.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        }
    }

    /// Writes message `index` as the kernel would; for a scripted [`Kernel`], which writes its
    /// messages in order. What does not fit is cut and marked.
    pub fn write(&mut self, index: usize, from: SocketAddr, control: &[u8], data: &[u8]) {
        let control_len = control.len().min(CONTROL_BYTES);
        let data_len = data.len().min(self.buffer_bytes);
        let start = index * self.buffer_bytes;
        self.buffers[start..start + data_len].copy_from_slice(&data[..data_len]);
        self.controls[index].0[..control_len].copy_from_slice(&control[..control_len]);
        let name_len = addr::encode(from, &mut self.names[index]);
        let cut = data_len < data.len() || control_len < control.len();
        let header = &mut self.headers[index];
        header.msg_len = u32::try_from(data_len).expect("a datagram is small");
        header.msg_hdr.msg_namelen = u32::try_from(name_len).expect("a name is small");
        header.msg_hdr.msg_controllen = control_len;
        header.msg_hdr.msg_flags = if cut { libc::MSG_TRUNC } else { 0 };
        self.used = index + 1;
    }

    /// Undoes what the kernel wrote to the headers of the last call; the others are untouched.
    fn reset(&mut self) {
        for header in &mut self.headers[..self.used] {
            header.msg_len = 0;
            header.msg_hdr.msg_namelen = NAME_LEN;
            header.msg_hdr.msg_controllen = CONTROL_BYTES;
            header.msg_hdr.msg_flags = 0;
        }
        self.used = 0;
    }
}

/// The arrays of `sendmmsg`. The bytes stay with whoever sends them.
pub struct SendBatch {
    headers: Vec<libc::mmsghdr>,
    vectors: Vec<libc::iovec>,
    names: Vec<Name>,
    controls: Vec<Control>,
}

impl SendBatch {
    /// Room for `messages` messages.
    pub fn new(messages: usize) -> Self {
        let mut names = vec![Name([0; NAME_BYTES]); messages];
        let mut controls = vec![Control([0; CONTROL_BYTES]); messages];
        let mut vectors = vec![libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; messages];
        let headers = headers(&mut names, &mut controls, &mut vectors);
        Self { headers, vectors, names, controls }
    }

    /// Most messages one call can send.
    pub fn capacity(&self) -> usize {
        self.headers.len()
    }

    fn fill(&mut self, index: usize, message: &Outgoing<'_>) {
        let Outgoing { to, src, ecn, segment, data } = *message;
        let v6 = addr::canonical(to).is_ipv6();
        let control = &mut self.controls[index].0;
        let header = &mut self.headers[index].msg_hdr;
        header.msg_controllen = cmsg::encode(control, v6, ecn, src, segment);
        let name_len = addr::encode(to, &mut self.names[index]);
        header.msg_namelen = u32::try_from(name_len).expect("a name is small");
        let vector = &mut self.vectors[index];
        vector.iov_base = data.as_ptr().cast_mut().cast();
        vector.iov_len = data.len();
    }
}

impl Kernel for Linux {
    fn recv(
        &mut self,
        fd: BorrowedFd<'_>,
        batch: &mut RecvBatch,
        count: usize,
    ) -> io::Result<usize> {
        batch.reset();
        let vlen = u32::try_from(count.min(batch.capacity())).expect("a batch is small");
        let headers = batch.headers.as_mut_ptr();
        // SAFETY: `fd` is open while borrowed. `headers` points to at least `vlen` headers
        // (`min` with the capacity). Each one's name, vector and control pointers lead to arrays
        // of the same batch (`headers()`), which are exclusively borrowed and never reallocated;
        // their lengths are the sizes of those elements (`RecvBatch::new`, `reset`). All bytes
        // written are valid for their plain-integer types. A null timeout is allowed.
        let n = unsafe {
            libc::recvmmsg(fd.as_raw_fd(), headers, vlen, libc::MSG_DONTWAIT, ptr::null_mut())
        };
        batch.used = checked(n)?;
        Ok(batch.used)
    }

    fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        batch: &mut SendBatch,
        messages: impl Iterator<Item = Outgoing<'a>>,
    ) -> io::Result<usize> {
        let mut filled = 0;
        for message in messages.take(batch.capacity()) {
            batch.fill(filled, &message);
            filled += 1;
        }
        let vlen = u32::try_from(filled).expect("a batch is small");
        let headers = batch.headers.as_mut_ptr();
        // SAFETY: `fd` is open while borrowed. The first `vlen` headers were filled just above;
        // their name, vector and control pointers lead to arrays of the same batch (`headers()`),
        // which are exclusively borrowed and never reallocated, with lengths within the elements
        // (`fill`). Each vector names the bytes of an `Outgoing<'a>`, borrowed for `'a`, which
        // outlives this call; the kernel only reads them.
        let n = unsafe { libc::sendmmsg(fd.as_raw_fd(), headers, vlen, libc::MSG_DONTWAIT) };
        checked(n)
    }
}

/// Sets an integer option of a socket.
pub fn set_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("an int is small");
    // SAFETY: `fd` is open while borrowed. The value pointer is valid for reads of `len` bytes:
    // it borrows `value`, whose size `len` is, until the call returns. The kernel only reads.
    let result =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, ptr::from_ref(&value).cast(), len) };
    checked(result).map(drop)
}

/// Headers that point, one by one, at the elements of the other arrays.
fn headers(
    names: &mut Vec<Name>,
    controls: &mut Vec<Control>,
    vectors: &mut Vec<libc::iovec>,
) -> Vec<libc::mmsghdr> {
    assert!(names.len() == controls.len() && names.len() == vectors.len());
    let (messages, names) = (names.len(), names.as_mut_ptr());
    let (controls, vectors) = (controls.as_mut_ptr(), vectors.as_mut_ptr());
    let mut headers = Vec::with_capacity(messages);
    for i in 0..messages {
        // SAFETY: `mmsghdr` is made of integers and raw pointers, for which all zeroes is valid.
        let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
        header.msg_hdr.msg_name = names.wrapping_add(i).cast();
        header.msg_hdr.msg_control = controls.wrapping_add(i).cast();
        header.msg_hdr.msg_iov = vectors.wrapping_add(i);
        header.msg_hdr.msg_iovlen = 1;
        headers.push(header);
    }
    headers
}

/// A call's result, or the error it left.
fn checked(result: libc::c_int) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}
