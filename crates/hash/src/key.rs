//! The secret of a Toeplitz hash: 40 to 64 bytes, read as one string of bits.
//!
//! ```
//! use picnic_hash::Key;
//!
//! let key: Key = Key::MICROSOFT.to_string().parse()?;
//! assert_eq!(key, Key::MICROSOFT);
//! assert!(Key::symmetric().is_symmetric());
//! # Ok::<(), picnic_hash::Error>(())
//! ```
//!
//! # Guarantees
//!
//! A `Key` is always long enough for the longest flow, two IPv6 addresses and
//! two ports, and its text form reads back as the same key.
//!
//! Source: Microsoft, "RSS Hashing Functions" and "Verifying the RSS Hash
//! Calculation"; the symmetric key: Woo and Park, "Scalable TCP Session
//! Monitoring with Symmetric Receive-side Scaling", 2012.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// A Toeplitz key of 40 to 64 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    // Zero past `len`, so that equality may be derived.
    bytes: [u8; Key::MAX_BYTES],
    len: u8,
}

impl Key {
    /// Fewest bytes: enough for 36 bytes of input and a 32-bit hash.
    pub const MIN_BYTES: usize = 40;
    /// Most bytes.
    pub const MAX_BYTES: usize = 64;

    /// The 40-byte key of Microsoft's verification suite, the usual default of NICs.
    pub const MICROSOFT: Key = Key::padded([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ]);

    /// 40 bytes of `6d5a` repeated: both directions of a connection get one hash.
    ///
    /// The price is spread: the key carries 16 bits of secret, so the hash
    /// takes no more than 65,536 values.
    pub const fn symmetric() -> Key {
        let mut bytes = [0x6d; Key::MIN_BYTES];
        let mut i = 1;
        while i < bytes.len() {
            bytes[i] = 0x5a;
            i += 2;
        }
        Key::padded(bytes)
    }

    const fn padded(bytes: [u8; Key::MIN_BYTES]) -> Key {
        let mut all = [0; Key::MAX_BYTES];
        let mut i = 0;
        while i < bytes.len() {
            all[i] = bytes[i];
            i += 1;
        }
        Key { bytes: all, len: Key::MIN_BYTES as u8 }
    }

    /// A key from its bytes, first byte first.
    ///
    /// # Errors
    ///
    /// [`Error::KeyLength`] unless there are 40 to 64 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Key, Error> {
        if !(Key::MIN_BYTES..=Key::MAX_BYTES).contains(&bytes.len()) {
            return Err(Error::KeyLength { found: bytes.len() });
        }
        let mut all = [0; Key::MAX_BYTES];
        all[..bytes.len()].copy_from_slice(bytes);
        Ok(Key { bytes: all, len: bytes.len() as u8 })
    }

    /// The key's bytes, 40 to 64 of them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Bytes of input the key reaches: its length less the four of the hash.
    pub fn max_input(&self) -> usize {
        usize::from(self.len) - 4
    }

    /// Whether swapping source and destination never changes a hash, over IPv4 and IPv6.
    pub fn is_symmetric(&self) -> bool {
        // Two input bits may change places if they select the same 32 key bits.
        let interchangeable = |first: usize, second: usize, bits: usize| {
            (0..bits).all(|bit| self.window(first + bit) == self.window(second + bit))
        };
        interchangeable(0, 32, 32)
            && interchangeable(64, 80, 16)
            && interchangeable(0, 128, 128)
            && interchangeable(256, 272, 16)
    }

    /// The 32 key bits that start at bit `at`, counted from the first byte's high bit.
    ///
    /// Past its end the key continues with zeros.
    pub(crate) fn window(&self, at: usize) -> u32 {
        let byte = |i: usize| u64::from(self.bytes.get(i).copied().unwrap_or(0));
        let first = at / 8;
        let wide = (0..5).fold(0, |wide, i| wide << 8 | byte(first + i));
        (wide >> (8 - at % 8)) as u32
    }
}

impl FromStr for Key {
    type Err = Error;

    /// Reads hex digits, two to a byte, with or without `:` between bytes (as `ethtool -x` prints).
    fn from_str(text: &str) -> Result<Key, Error> {
        let mut bytes = [0; Key::MAX_BYTES];
        let mut digits = 0;
        let mut may_break = false;
        for (position, found) in text.chars().enumerate() {
            if found == ':' && may_break {
                may_break = false;
                continue;
            }
            let digit = found.to_digit(16).ok_or(Error::KeyDigit { position, found })?;
            // Count past the last byte, so that the error can name the length.
            if let Some(byte) = bytes.get_mut(digits / 2) {
                *byte = *byte << 4 | digit as u8;
            }
            digits += 1;
            may_break = digits % 2 == 0;
        }
        if digits % 2 != 0 {
            return Err(Error::KeyOddDigits { digits });
        }
        let found = digits / 2;
        bytes.get(..found).ok_or(Error::KeyLength { found }).and_then(Key::from_bytes)
    }
}

impl fmt::Display for Key {
    /// Writes lower-case hex digits without separators.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;

    #[test]
    fn text_form_reads_back_with_and_without_colons() {
        let text = Key::MICROSOFT.to_string();
        assert_eq!(text.len(), 80);
        assert_eq!(text.parse(), Ok(Key::MICROSOFT));
        let pairs: Vec<&str> = (0..40).map(|i| &text[2 * i..2 * i + 2]).collect();
        assert_eq!(pairs.join(":").parse(), Ok(Key::MICROSOFT));
        assert_eq!(text.to_uppercase().parse(), Ok(Key::MICROSOFT));
    }

    #[test]
    fn bad_text_is_named_exactly() {
        let parse = |text: &str| text.parse::<Key>().unwrap_err();
        assert_eq!(parse(""), Error::KeyLength { found: 0 });
        assert_eq!(parse(&"ab".repeat(39)), Error::KeyLength { found: 39 });
        assert_eq!(parse(&"ab".repeat(65)), Error::KeyLength { found: 65 });
        assert_eq!(parse(&"a".repeat(81)), Error::KeyOddDigits { digits: 81 });
        assert_eq!(parse("6d5x"), Error::KeyDigit { position: 3, found: 'x' });
        assert_eq!(parse("6g5a"), Error::KeyDigit { position: 1, found: 'g' });
        assert_eq!(parse("6d::5a"), Error::KeyDigit { position: 3, found: ':' });
        assert_eq!(parse("6:d5a"), Error::KeyDigit { position: 1, found: ':' });
        assert_eq!(
            parse("6d é").to_string(),
            "hash key has ' ' at character 2, allowed: hex digits, two to a byte, \
             with or without ':' between bytes"
        );
    }

    #[test]
    fn length_is_checked() {
        for len in 0..100 {
            let key = Key::from_bytes(&vec![1; len]);
            assert_eq!(key.is_ok(), (40..=64).contains(&len));
            // A set bit of the input takes 32 bits of the key: the last byte's, the last 32.
            assert!(key.is_ok_and(|key| key.max_input() == len - 4) || !(40..=64).contains(&len));
        }
    }

    /// By definition: both directions of every flow have the same hash. The hash is linear, so
    /// single-bit flows represent all.
    fn hashes_directions_alike(key: &Key) -> bool {
        let alike = |input: &[u8], back: &[u8]| reference(key, input) == reference(key, back);
        (0..12 * 8).all(|bit| {
            let mut bytes = [0; 12];
            bytes[bit / 8] = 0x80 >> (bit % 8);
            let back = [&bytes[4..8], &bytes[..4], &bytes[10..], &bytes[8..10]].concat();
            alike(&bytes, &back)
        }) && (0..36 * 8).all(|bit| {
            let mut bytes = [0; 36];
            bytes[bit / 8] = 0x80 >> (bit % 8);
            let back = [&bytes[16..32], &bytes[..16], &bytes[34..], &bytes[32..34]].concat();
            alike(&bytes, &back)
        })
    }

    #[test]
    fn a_key_that_is_symmetric_in_some_fields_only_is_not() {
        const PAIR: [u8; 2] = [0x6d, 0x5a];
        const OTHER: [u8; 4] = [0x11, 0x22, 0x33, 0x44];
        let key = |parts: &[&[u8]]| Key::from_bytes(&parts.concat()).unwrap();
        let [two, four, eight] = [2, 4, 8].map(|count| PAIR.repeat(count));
        // Symmetric except in: addresses of IPv4, ports of IPv4, addresses of IPv6, ports of IPv6.
        let keys = [
            key(&[&two, &OTHER, &four, &two, &OTHER, &four, &four]),
            key(&[&four, &two, &OTHER, &four, &two, &OTHER, &four]),
            key(&[&eight, &[0; 24]]),
            key(&[&eight, &eight, &two, &OTHER]),
        ];
        for key in keys {
            assert!(!hashes_directions_alike(&key) && !key.is_symmetric(), "{key}");
        }
        for key in [Key::symmetric(), key(&[&four.repeat(8)]), key(&[&OTHER.repeat(10)])] {
            assert_eq!(key.is_symmetric(), hashes_directions_alike(&key), "{key}");
        }
        // Bits that no two fields share may differ.
        for bits in [&[31, 63, 159, 191][..], &[127, 255]] {
            let mut bytes = PAIR.repeat(20);
            bits.iter().for_each(|bit| bytes[bit / 8] ^= 0x80 >> (bit % 8));
            let key = Key::from_bytes(&bytes).unwrap();
            assert!(key.is_symmetric() && hashes_directions_alike(&key), "{key}");
        }
        // Each bit of a symmetric key alone.
        for bit in 0..320 {
            let mut bytes = [0x6d, 0x5a].repeat(20);
            bytes[bit / 8] ^= 0x80 >> (bit % 8);
            let key = Key::from_bytes(&bytes).unwrap();
            assert_eq!(key.is_symmetric(), hashes_directions_alike(&key), "{key}");
        }
    }

    #[test]
    fn only_a_key_of_equal_windows_is_symmetric() {
        assert!(Key::symmetric().is_symmetric());
        assert!(!Key::MICROSOFT.is_symmetric());
        let mut bytes = *Key::symmetric().as_bytes().first_chunk::<40>().unwrap();
        // The last bit of an IPv6 port reaches the last bit but one, and nothing reaches the last.
        bytes[39] ^= 1;
        assert!(Key::from_bytes(&bytes).unwrap().is_symmetric());
        bytes[39] ^= 2;
        assert!(!Key::from_bytes(&bytes).unwrap().is_symmetric());
    }
}
