//! A classifier as words, searched as the kernel engine does it: by places, without a pointer.

use super::super::image::CLASSIFIER;
use super::super::rule::{FIELDS, TableKey};
use super::super::{Address, Classifier, Key, NONE, Rule};
use crate::image::{Image, PAGE};

/// Where the words begin: a page that is not the first.
const BASE: usize = 3 * PAGE;

/// Addresses out of words.
pub(super) trait OfWords: Address {
    fn of_words(words: &[u64]) -> Self;
}

impl OfWords for u64 {
    fn of_words(words: &[u64]) -> Self {
        words[0]
    }
}

impl OfWords for [u64; 4] {
    fn of_words(words: &[u64]) -> Self {
        words[..4].try_into().unwrap()
    }
}

pub(super) struct Written {
    head: [u64; CLASSIFIER],
    words: Vec<u64>,
}

fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

fn quarter(word: u64, number: usize) -> u16 {
    let bytes = word.to_ne_bytes();
    u16::from_ne_bytes([bytes[2 * number], bytes[2 * number + 1]])
}

impl Written {
    pub(super) fn of<A: Address>(classifier: &Classifier<A>) -> Self {
        let mut image = Image::at(BASE);
        let head = classifier.write(&mut image);
        Written { head, words: image.into_words() }
    }

    fn word(&self, place: u32) -> u64 {
        self.words[place as usize - BASE]
    }

    fn rule<A: OfWords>(&self, first: u32, index: u32) -> Rule<A> {
        let place = (first + index * A::RULE as u32) as usize;
        assert!(place % PAGE + A::RULE <= PAGE, "a rule is in two pages");
        let words = &self.words[place - BASE..][..A::RULE];
        let (low, span) = halves(words[2 * A::WORDS]);
        let rest = |number| quarter(words[2 * A::WORDS + 1], number);
        Rule {
            value: A::of_words(words),
            mask: A::of_words(&words[A::WORDS..]),
            low,
            span,
            protocol: rest(0),
            protocol_mask: rest(1),
            position: rest(2),
            next: rest(3),
        }
    }

    /// The place of the first rule from `from` on that matches, or [`NONE`].
    pub(super) fn find<A: OfWords>(&self, key: &Key<A>, from: u16) -> u16 {
        let (tables, entries) = halves(self.head[0]);
        let mut best = NONE;
        for table in self.head[4..].chunks_exact(8).take(tables as usize) {
            let ((slots, slot_mask), (first, _)) = (halves(table[5]), halves(table[6]));
            if first >= best.into() {
                break;
            }
            let mask = TableKey { address: A::of_words(table), rest: table[4] };
            let slot = mask.hash(key) as u32 & slot_mask;
            let mut next = quarter(self.word(slots + slot / 4), slot as usize % 4);
            while next != 0 {
                let rule = self.rule::<A>(entries, next.into());
                if rule.position >= best {
                    break;
                }
                if rule.position >= from && rule.matches(key) {
                    best = rule.position;
                    break;
                }
                next = rule.next;
            }
        }
        self.find_by_vectors(key, from).min(best)
    }

    fn find_by_vectors<A: OfWords>(&self, key: &Key<A>, from: u16) -> u16 {
        let ((rules, first_rule), (words, is_cut)) = (halves(self.head[1]), halves(self.head[2]));
        let (begins, bits) = halves(self.head[3]);
        if rules == 0 {
            return NONE;
        }
        assert!(begins as usize % PAGE + FIELDS * 64 <= PAGE, "intervals are in two pages");
        let vectors: [u32; FIELDS] = std::array::from_fn(|field| {
            let begin = |n| self.word(begins + field as u32 * 64 + n);
            let below = (0..63).take_while(|&n| begin(n) <= key.values()[field]).count() as u32;
            let interval = if is_cut >> field & 1 == 0 { 0 } else { below };
            bits + (field as u32 * 64 + interval) * words
        });
        for word in 0..words {
            let all = vectors.map(|vector| self.word(vector + word));
            let mut candidates = all.into_iter().fold(u64::MAX, |all, bits| all & bits);
            while candidates != 0 {
                let rule = self.rule::<A>(first_rule, word * 64 + candidates.trailing_zeros());
                if rule.position >= from && rule.matches(key) {
                    return rule.position;
                }
                candidates &= candidates - 1;
            }
        }
        NONE
    }
}
