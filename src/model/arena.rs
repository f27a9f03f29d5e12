//! Frame memory: blocks of 8 to 64 KiB, written once from front to back and handed out as `Bytes`.
//!
//! ```text
//! block   |<- handed out as slices ->|<- writable ->|
//!         0                        fill            size
//! ```
//! Ownership: the arena keeps one `Bytes` over each whole block, and is the only writer. Slices go
//! to quinn-proto and come back by being dropped; nothing is told, no list is kept: a released
//! block rests in `resting` until its own handle is the only one left (`is_unique`), and is then
//! written again from the front. Invariant: memory below `fill` is never written while a slice may
//! exist; `append` writes only at `fill`, and only `lease` moves `fill` back, after `is_unique`.
#![expect(
    unsafe_code,
    reason = "one writer behind shared readers cannot be said in safe Rust without a copy"
)]

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use bytes::{Bytes, BytesMut};

/// Sizes a block may have, ascending.
pub const SIZES: [usize; 4] = [8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// How many resting blocks are looked at for one that is free again.
const POLLS: usize = 4;
/// Longest single copy. Larger misaligned ones may take the CPU's slow string move.
const COPY_MAX: usize = 2048;

/// One block of this arena. Valid while its leaser has not released it for the last time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct BlockId(u32);

struct Block {
    /// Over the whole block; all slices are clones of it.
    handle: Bytes,
    /// Start of the block, taken while the memory was exclusively ours.
    start: *mut u8,
    fill: u32,
    size: u32,
    /// Leaseholders: lanes with spans in it, and whoever appends to it.
    users: u32,
    class: u8,
}

/// All frame memory of one shard.
pub struct Arena {
    blocks: Vec<Block>,
    resting: [VecDeque<BlockId>; SIZES.len()],
    /// Places of blocks that were given back.
    vacant: Vec<BlockId>,
    bytes_max: usize,
    allocated: usize,
    leased: usize,
    /// Blocks made by the allocator, blocks taken again, and leases refused, since the start.
    pub stats: Stats,
}

/// What the arena counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blocks that came from the allocator.
    pub allocated: u64,
    /// Leases served by a block that was in use before.
    pub reused: u64,
    /// Leases refused because `bytes_max` was reached.
    pub exhausted: u64,
}

/// The smallest class that holds `bytes`, or the largest there is.
pub fn class_for(bytes: usize) -> usize {
    SIZES.iter().position(|size| *size >= bytes).unwrap_or(SIZES.len() - 1)
}

impl Arena {
    /// An empty arena that will hold at most `bytes_max` bytes of blocks.
    pub fn new(bytes_max: usize) -> Self {
        Self {
            blocks: Vec::new(),
            resting: std::array::from_fn(|_| VecDeque::new()),
            vacant: Vec::new(),
            bytes_max,
            allocated: 0,
            leased: 0,
            stats: Stats::default(),
        }
    }

    /// Leases an empty block of `class` with one user. `None` when the arena is full and no resting
    /// block of the class is free: the caller evicts and tries again, or sheds.
    pub fn lease(&mut self, class: usize) -> Option<BlockId> {
        for _ in 0..self.resting[class].len().min(POLLS) {
            let id = self.resting[class].pop_front()?;
            if self.renew(id) {
                self.stats.reused += 1;
                self.leased += SIZES[class];
                return Some(id);
            }
            self.resting[class].push_back(id);
        }
        if self.allocated + SIZES[class] > self.bytes_max && !self.reclaim(SIZES[class]) {
            self.stats.exhausted += 1;
            return None;
        }
        let memory = BytesMut::zeroed(SIZES[class]);
        let mut block = Block {
            handle: Bytes::new(),
            start: std::ptr::null_mut(),
            fill: 0,
            size: u32::try_from(SIZES[class]).expect("block sizes fit 32 bits"),
            users: 1,
            class: u8::try_from(class).expect("few classes"),
        };
        block.arm(memory);
        let id = match self.vacant.pop() {
            Some(id) => {
                self.blocks[id.0 as usize] = block;
                id
            }
            None => {
                let id = u32::try_from(self.blocks.len()).expect("fewer than 2^32 blocks");
                self.blocks.push(block);
                BlockId(id)
            }
        };
        self.allocated += SIZES[class];
        self.leased += SIZES[class];
        self.stats.allocated += 1;
        Some(id)
    }

    /// Gives resting blocks that nobody reads back to the allocator, of whatever class, until
    /// `size` bytes fit again. False when there are not enough.
    fn reclaim(&mut self, size: usize) -> bool {
        for class in (0..SIZES.len()).rev() {
            for _ in 0..self.resting[class].len() {
                if self.allocated + size <= self.bytes_max {
                    return true;
                }
                let Some(id) = self.resting[class].pop_front() else { break };
                let block = &mut self.blocks[id.0 as usize];
                if block.handle.is_unique() {
                    block.handle = Bytes::new();
                    block.start = std::ptr::null_mut();
                    self.allocated -= SIZES[class];
                    self.vacant.push(id);
                } else {
                    self.resting[class].push_back(id);
                }
            }
        }
        self.allocated + size <= self.bytes_max
    }

    /// Makes a resting block writable from its front if nobody holds a slice of it.
    fn renew(&mut self, id: BlockId) -> bool {
        let block = &mut self.blocks[id.0 as usize];
        if !block.handle.is_unique() {
            return false;
        }
        // The last drop of a slice may have been another thread's (a mirror's): see all it read.
        fence(Ordering::Acquire);
        let memory = std::mem::take(&mut block.handle).try_into_mut().expect("just found unique");
        block.arm(memory);
        block.users = 1;
        true
    }

    /// One more user of a leased block.
    pub fn retain(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        assert!(block.users > 0, "retain of a released block");
        block.users += 1;
    }

    /// One user less; the last one sends the block to rest.
    pub fn release(&mut self, id: BlockId) {
        let block = &mut self.blocks[id.0 as usize];
        assert!(block.users > 0, "release of a released block");
        block.users -= 1;
        if block.users == 0 {
            self.leased -= block.size as usize;
            self.resting[block.class as usize].push_back(id);
        }
    }

    /// Bytes that `append` still takes.
    #[inline]
    pub fn room(&self, id: BlockId) -> usize {
        let block = &self.blocks[id.0 as usize];
        (block.size - block.fill) as usize
    }

    /// True when `len` bytes may be appended to a block whose last written byte is before `end`.
    #[inline]
    pub fn follows(&self, id: BlockId, end: u32, len: usize) -> bool {
        let block = &self.blocks[id.0 as usize];
        block.fill == end && (block.size - end) as usize >= len
    }

    /// Size of the block.
    pub fn size(&self, id: BlockId) -> usize {
        self.blocks[id.0 as usize].size as usize
    }

    /// Copies `bytes` behind what is written and returns where they start. They must fit `room`.
    #[inline]
    pub fn append(&mut self, id: BlockId, bytes: &[u8]) -> u32 {
        let block = &mut self.blocks[id.0 as usize];
        assert!(block.users > 0, "append to a released block");
        assert!(bytes.len() <= (block.size - block.fill) as usize, "append beyond the block");
        let at = block.fill;
        for piece in bytes.chunks(COPY_MAX) {
            // SAFETY: `start` points to `size` bytes owned by `handle`, which `self` keeps; fill +
            // piece.len() <= size by the assertion above; `bytes` cannot overlap, it is borrowed
            // while we hold `&mut self`, and slices of this block end at `fill` (`slice` asserts
            // it).
            let to = unsafe { block.start.add(block.fill as usize) };
            // SAFETY: as above: `to` is writable for piece.len() bytes that nobody else can read.
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), to, piece.len()) };
            block.fill += u32::try_from(piece.len()).expect("at most COPY_MAX");
        }
        at
    }

    /// Has `write` put at most `N` bytes behind what is written, and hands out those it counts.
    /// `None` when there is no room for `N`.
    #[inline(always)]
    pub fn put<const N: usize>(
        &mut self,
        id: BlockId,
        write: impl FnOnce(&mut [u8; N]) -> usize,
    ) -> Option<Bytes> {
        let block = &mut self.blocks[id.0 as usize];
        assert!(block.users > 0, "put into a released block");
        if ((block.size - block.fill) as usize) < N {
            return None;
        }
        let start = block.fill as usize;
        // SAFETY: `start` points to `size` bytes owned by `handle`, which `self` keeps, and
        // fill + N <= size as just tested.
        let free = unsafe { block.start.add(start) };
        // SAFETY: as above: N initialised bytes, which nobody else sees while we hold `&mut self`,
        // since slices of this block end at `fill` (`slice` and `append` assert it).
        let free = unsafe { &mut *free.cast::<[u8; N]>() };
        let len = write(free);
        assert!(len <= N, "a header within its bytes");
        block.fill += u32::try_from(len).expect("short");
        Some(block.handle.slice(start..start + len))
    }

    /// A reference to `len` written bytes from `start`; allocates nothing.
    #[inline]
    pub fn slice(&self, id: BlockId, start: u32, len: u32) -> Bytes {
        let block = &self.blocks[id.0 as usize];
        assert!(start + len <= block.fill, "slice of unwritten memory");
        block.handle.slice(start as usize..(start + len) as usize)
    }

    /// Written bytes from `start`, for reading in place.
    pub fn read(&self, id: BlockId, start: u32, len: u32) -> &[u8] {
        let block = &self.blocks[id.0 as usize];
        assert!(start + len <= block.fill, "read of unwritten memory");
        &block.handle[start as usize..(start + len) as usize]
    }

    /// Bytes of all blocks that exist.
    pub fn allocated(&self) -> usize {
        self.allocated
    }

    /// Bytes of the blocks that are leased.
    pub fn leased(&self) -> usize {
        self.leased
    }

    /// Blocks that rest but are still referenced by slices somewhere.
    pub fn pinned(&self) -> usize {
        let held = |id: &&BlockId| !self.blocks[id.0 as usize].handle.is_unique();
        self.resting.iter().map(|list| list.iter().filter(held).count()).sum()
    }
}

impl Block {
    /// Takes `memory` as this block's: remembers where it starts while it is exclusively ours, and
    /// keeps it as the handle that slices are cloned from. The split moves it into the shared form
    /// once, so that no later clone allocates.
    fn arm(&mut self, mut memory: BytesMut) {
        self.start = memory.as_mut_ptr();
        self.handle = memory.split().freeze();
        self.fill = 0;
    }
}
