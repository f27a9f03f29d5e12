//! Generational slots over `slab`: the container of everything the model keeps.
//!
//! A key outlives what it named: `get` then answers `None` instead of somebody else's entry. The
//! number of slots is bounded at construction; a full container refuses, it never grows past it.

use std::marker::PhantomData;

use slab::Slab;

/// Names one entry of a [`Slots<T>`]; eight bytes, comparable, never reused for another entry.
pub struct Key<T> {
    index: u32,
    generation: u32,
    kind: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    /// The slot number alone, for tables that are cleaned when the entry goes.
    pub fn index(self) -> u32 {
        self.index
    }

    /// Both halves in one integer, to travel through a layer that knows no key types.
    pub fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The inverse of [`Key::to_bits`].
    pub fn from_bits(bits: u64) -> Self {
        let index = u32::try_from(bits & 0xffff_ffff).expect("masked to 32 bits");
        let generation = u32::try_from(bits >> 32).expect("shifted to 32 bits");
        Self { index, generation, kind: PhantomData }
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Key<T> {}
impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        self.to_bits() == other.to_bits()
    }
}
impl<T> Eq for Key<T> {}
impl<T> PartialOrd for Key<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Key<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.to_bits().cmp(&other.to_bits())
    }
}
impl<T> std::hash::Hash for Key<T> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.to_bits().hash(state);
    }
}
impl<T> std::fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// At most `max` entries of one kind.
pub struct Slots<T> {
    slab: Slab<(u32, T)>,
    generation: u32,
    max: usize,
}

impl<T> Slots<T> {
    /// An empty container; allocates nothing yet.
    pub fn new(max: usize) -> Self {
        Self { slab: Slab::new(), generation: 1, max }
    }

    /// Stores `value`, or gives it back when all slots are in use.
    pub fn insert(&mut self, value: T) -> Result<Key<T>, T> {
        if self.is_full() { Err(value) } else { Ok(self.put(value)) }
    }

    /// As `insert`, where there is room.
    #[inline(always)]
    pub fn put(&mut self, value: T) -> Key<T> {
        assert!(self.slab.len() < self.max, "room was made sure of before");
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let index = self.slab.insert((generation, value));
        let index = u32::try_from(index).expect("limits are below 2^32");
        Key { index, generation, kind: PhantomData }
    }

    /// Takes the entry out.
    pub fn remove(&mut self, key: Key<T>) -> Option<T> {
        self.get(key)?;
        Some(self.slab.remove(key.index as usize).1)
    }

    /// The entry, unless it is gone.
    #[inline]
    pub fn get(&self, key: Key<T>) -> Option<&T> {
        match self.slab.get(key.index as usize) {
            Some((generation, value)) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    /// The entry, unless it is gone.
    #[inline]
    pub fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        match self.slab.get_mut(key.index as usize) {
            Some((generation, value)) if *generation == key.generation => Some(value),
            _ => None,
        }
    }

    /// The key of the entry that now sits in slot `index`.
    pub fn key_at(&self, index: u32) -> Option<Key<T>> {
        let (generation, _) = self.slab.get(index as usize)?;
        Some(Key { index, generation: *generation, kind: PhantomData })
    }

    /// What now sits in slot `index`, with its key.
    #[inline]
    pub fn entry_at(&mut self, index: u32) -> Option<(Key<T>, &mut T)> {
        let (generation, value) = self.slab.get_mut(index as usize)?;
        Some((Key { index, generation: *generation, kind: PhantomData }, value))
    }

    /// True when nothing more can be stored.
    pub fn is_full(&self) -> bool {
        self.slab.len() >= self.max
    }

    /// Every key, in slot order.
    pub fn keys(&self) -> impl Iterator<Item = Key<T>> + '_ {
        self.slab.iter().map(|(index, (generation, _))| Key {
            index: u32::try_from(index).expect("limits are below 2^32"),
            generation: *generation,
            kind: PhantomData,
        })
    }

    /// Entries in use.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// True when nothing is stored.
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    /// Bytes that the entries in use are charged: slots in use times slot size.
    pub fn bytes(&self) -> usize {
        self.slab.len() * size_of::<(u32, T)>()
    }
}

/// For links kept inside the model, whose owner cleans them before the entry goes.
impl<T> std::ops::Index<u32> for Slots<T> {
    type Output = T;
    #[inline]
    fn index(&self, index: u32) -> &T {
        &self.slab[index as usize].1
    }
}

impl<T> std::ops::IndexMut<u32> for Slots<T> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.slab[index as usize].1
    }
}
