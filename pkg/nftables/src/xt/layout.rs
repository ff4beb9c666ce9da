//! Bytes of the structures, written and read field by field.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use model::{Family, Mark};

/// A structure under construction.
#[derive(Default)]
pub(super) struct Layout(Vec<u8>);

impl Layout {
    pub(super) fn u8(mut self, value: u8) -> Layout {
        self.0.push(value);
        self
    }

    pub(super) fn u16(self, value: u16) -> Layout {
        self.bytes(&value.to_ne_bytes())
    }

    pub(super) fn be16(self, value: u16) -> Layout {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn u32(self, value: u32) -> Layout {
        self.bytes(&value.to_ne_bytes())
    }

    pub(super) fn bytes(mut self, value: &[u8]) -> Layout {
        self.0.extend_from_slice(value);
        self
    }

    pub(super) fn mark(self, mark: &Mark) -> Layout {
        self.u32(mark.value).u32(mark.mask)
    }

    /// `union nf_inet_addr`.
    pub(super) fn address(self, ip: IpAddr) -> Layout {
        match ip {
            IpAddr::V4(ip) => self.bytes(&ip.octets()).zeros(12),
            IpAddr::V6(ip) => self.bytes(&ip.octets()),
        }
    }

    pub(super) fn zeros(mut self, count: usize) -> Layout {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    /// Adds zeros up to this offset.
    pub(super) fn up_to(mut self, offset: usize) -> Layout {
        self.0.resize(offset, 0);
        self
    }

    pub(super) fn into_aligned_bytes(mut self) -> Vec<u8> {
        let length = self.0.len().next_multiple_of(8);
        self.0.resize(length, 0);
        self.0
    }
}

/// A kernel structure, read from its beginning. Missing bytes at its end count as zeros.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn read_array<const N: usize>(&mut self) -> [u8; N] {
        let mut value = [0; N];
        let (front, rest) = self.0.split_at(self.0.len().min(N));
        value.iter_mut().zip(front).for_each(|(into, from)| *into = *from);
        self.0 = rest;
        value
    }

    pub(super) fn read_u8(&mut self) -> u8 {
        u8::from_ne_bytes(self.read_array())
    }

    pub(super) fn read_u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.read_array())
    }

    pub(super) fn read_be16(&mut self) -> u16 {
        u16::from_be_bytes(self.read_array())
    }

    pub(super) fn read_u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.read_array())
    }

    pub(super) fn read_mark(&mut self) -> Mark {
        let value = self.read_u32();
        Mark { value, mask: self.read_u32() }
    }

    pub(super) fn read_address(&mut self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => {
                let ip = Ipv4Addr::from(self.read_array::<4>());
                (self.read_array::<12>() == [0; 12]).then_some(IpAddr::V4(ip))
            }
            Family::V6 => Some(IpAddr::V6(Ipv6Addr::from(self.read_array::<16>()))),
        }
    }

    /// Returns `value` if only zeros follow.
    pub(super) fn finish_with<T>(&self, value: T) -> Option<T> {
        self.0.iter().all(|byte| *byte == 0).then_some(value)
    }
}
