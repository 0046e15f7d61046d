//! Things that keep their number while others come and go. The ports and the lanes of a relay.

use std::ops::{Index, IndexMut};

/// Items by number. A number is free again when its item has been removed, and the lowest free one is given next.
#[derive(Debug)]
pub(super) struct Slots<T>(Vec<Option<T>>);

impl<T> Slots<T> {
    pub(super) fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds an item; its number.
    pub(super) fn insert(&mut self, item: T) -> usize {
        let free = self.0.iter().position(Option::is_none);
        let id = free.unwrap_or(self.0.len());
        if id == self.0.len() {
            self.0.push(None);
        }
        self.0[id] = Some(item);
        id
    }

    /// Puts an item back where it was.
    pub(super) fn put_back(&mut self, id: usize, item: T) {
        self.0[id] = Some(item);
    }

    pub(super) fn remove(&mut self, id: usize) -> Option<T> {
        self.0.get_mut(id)?.take()
    }

    /// In the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let items = self.0.iter().enumerate();
        items.filter_map(|(id, item)| Some((id, item.as_ref()?)))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        let items = self.0.iter_mut().enumerate();
        items.filter_map(|(id, item)| Some((id, item.as_mut()?)))
    }
}

/// Panics if there is no such item: a number is used only by what is removed before it.
impl<T> Index<usize> for Slots<T> {
    type Output = T;

    fn index(&self, id: usize) -> &T {
        self.0[id]
            .as_ref()
            .unwrap_or_else(|| unreachable!("nothing has the number {id}"))
    }
}

impl<T> IndexMut<usize> for Slots<T> {
    fn index_mut(&mut self, id: usize) -> &mut T {
        self.0[id]
            .as_mut()
            .unwrap_or_else(|| unreachable!("nothing has the number {id}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_and_are_used_again() {
        let mut slots = Slots::new();
        assert_eq!(
            [slots.insert('a'), slots.insert('b'), slots.insert('c')],
            [0, 1, 2]
        );
        assert_eq!(
            (slots.remove(1), slots.remove(1), slots.remove(9)),
            (Some('b'), None, None)
        );
        assert_eq!(slots.iter().collect::<Vec<_>>(), [(0, &'a'), (2, &'c')]);
        slots.put_back(1, 'b');
        assert_eq!(slots.remove(1), Some('b'));
        assert_eq!(slots.insert('d'), 1);
        slots[1] = 'e';
        assert_eq!((slots[1], slots.insert('f')), ('e', 3));
        assert_eq!(slots.iter_mut().count(), 4);
    }
}
