//! Costs of calls that need no attribute: methods and functions of `core`.
//!
//! Types are unknown here, so the table has a name only if every method of `core` with that name
//! and number of arguments takes a fixed time. `rotate_left` is missing because slices have one
//! too; `u32::rotate_left(x, 5)` is known.

use crate::cost::Class;

/// A number of operations of a class.
pub(crate) type Charge = (Class, u32);

const CALL: Charge = (Class::Call, 1);
const ARITHMETIC: Charge = (Class::Arithmetic, 2);
const MULTIPLY: Charge = (Class::Multiply, 2);
const DIVIDE: Charge = (Class::Divide, 2);
/// By repeated squaring: two multiplications for each bit of the exponent.
const POWER: Charge = (Class::Multiply, 64);

/// The cost of a method with this name and number of arguments, for any receiver.
pub(crate) fn method(name: &str, arguments: usize) -> Option<Charge> {
    let charge = match (name, arguments) {
        // Slices, arrays, strings: read the length or the place.
        ("len" | "is_empty" | "first" | "first_mut" | "as_slice" | "as_mut_slice", 0) => CALL,
        ("split_first" | "split_last" | "as_bytes" | "as_str" | "as_ptr", 0) => CALL,
        ("get" | "get_mut" | "split_at" | "split_at_mut" | "split_at_checked", 1) => CALL,
        ("swap", 1 | 2) => CALL,
        // Making an iterator; advancing it is the loop's cost.
        ("iter" | "iter_mut" | "into_iter" | "enumerate" | "copied" | "rev", 0) => CALL,
        ("take" | "zip" | "step_by" | "chunks_exact" | "windows" | "chunks", 1) => CALL,
        // Options and results.
        ("is_some" | "is_none" | "is_ok" | "is_err" | "ok" | "err" | "as_ref" | "as_mut", 0) => {
            CALL
        }
        ("unwrap" | "unwrap_err" | "take", 0) => CALL,
        ("expect" | "expect_err" | "unwrap_or" | "ok_or" | "then_some" | "xor", 1) => CALL,
        // Cells.
        ("get", 0) | ("set", 1) => CALL,
        // Numbers.
        ("min" | "max", 1) | ("clamp", 2) => ARITHMETIC,
        ("abs" | "signum" | "unsigned_abs" | "is_positive" | "is_negative", 0) => ARITHMETIC,
        ("abs_diff" | "is_power_of_two" | "next_power_of_two", 0 | 1) => ARITHMETIC,
        ("count_ones" | "count_zeros" | "leading_zeros" | "trailing_zeros", 0) => ARITHMETIC,
        ("leading_ones" | "trailing_ones" | "swap_bytes" | "reverse_bits", 0) => ARITHMETIC,
        // Points in time.
        ("as_nanos", 0) | ("since", 1) => ARITHMETIC,
        ("to_be" | "to_le" | "to_be_bytes" | "to_le_bytes" | "to_ne_bytes", 0) => ARITHMETIC,
        ("is_ascii_digit" | "is_ascii_alphabetic" | "to_bits", 0) => ARITHMETIC,
        ("rem_euclid" | "div_euclid" | "div_ceil" | "is_multiple_of" | "next_multiple_of", 1) => {
            DIVIDE
        }
        ("isqrt" | "sqrt", 0) => (Class::Divide, 8),
        ("ilog2", 0) => ARITHMETIC,
        ("pow", 1) => POWER,
        _ => return operation(name, arguments),
    };
    Some(charge)
}

/// `wrapping_add` and similar methods.
fn operation(name: &str, arguments: usize) -> Option<Charge> {
    let kinds = ["wrapping_", "checked_", "saturating_", "overflowing_", "unbounded_"];
    let operation = kinds.iter().find_map(|kind| name.strip_prefix(kind))?;
    let charge = match (operation, arguments) {
        ("add" | "sub" | "shl" | "shr" | "add_signed" | "sub_unsigned", 1) => ARITHMETIC,
        ("add_unsigned" | "sub_signed", 1) => ARITHMETIC,
        ("neg" | "abs", 0) => ARITHMETIC,
        ("mul", 1) => MULTIPLY,
        ("div" | "rem" | "div_euclid" | "rem_euclid" | "next_multiple_of", 1) => DIVIDE,
        ("pow", 1) => POWER,
        _ => return None,
    };
    Some(charge)
}

/// Methods that call their closure at once, and at most once. Iterators have no methods of these
/// names.
pub(crate) fn calls_once(name: &str) -> bool {
    matches!(
        name,
        "map_or"
            | "map_or_else"
            | "is_some_and"
            | "is_none_or"
            | "is_ok_and"
            | "is_err_and"
            | "unwrap_or_else"
            | "ok_or_else"
            | "or_else"
            | "and_then"
            | "map_err"
            | "get_or_insert_with"
            | "then"
    )
}

const INTEGERS: [&str; 12] =
    ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize"];

/// The cost of a function of `core`, by the last two segments of its path.
pub(crate) fn function(owner: &str, name: &str, arguments: usize) -> Option<Charge> {
    if INTEGERS.contains(&owner) || matches!(owner, "f32" | "f64" | "bool" | "char") {
        return match (name, arguments) {
            ("from" | "from_be_bytes" | "from_le_bytes" | "from_ne_bytes" | "from_be", 1)
            | ("from_le" | "from_bits" | "try_from", 1)
            | ("rotate_left" | "rotate_right", 2) => Some(ARITHMETIC),
            ("default", 0) => Some(ARITHMETIC),
            // As a method, with the first argument as receiver.
            _ => method(name, arguments.checked_sub(1)?),
        };
    }
    match (owner, name, arguments) {
        ("mem", "swap" | "replace", 2) | ("mem", "take", 1) | ("hint", "black_box", 1) => {
            Some(CALL)
        }
        ("cmp", "min" | "max", 2) => Some(ARITHMETIC),
        ("Duration", "from_secs" | "from_millis" | "from_micros" | "from_nanos", 1) => Some(DIVIDE),
        ("Time", "from_nanos", 1) => Some(ARITHMETIC),
        ("Cell", "new", 1) => Some(CALL),
        _ => None,
    }
}

/// Whether an awaited method of the task context ends the invocation. Unknown names count as plain
/// yields, which can make a bound larger but never smaller.
pub(crate) fn waits(name: &str) -> bool {
    matches!(name, "sleep" | "sleep_ns" | "sleep_until" | "next_release" | "receive" | "send")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_of_unbounded_time_are_not_in_the_table() {
        let long = [
            ("rotate_left", 1),
            ("fill", 1),
            ("sort", 0),
            ("contains", 1),
            ("min", 0),
            ("max", 0),
            ("sum", 0),
            ("count", 0),
            ("collect", 0),
            ("push", 1),
            ("clone", 0),
            ("cloned", 0),
            ("map", 1),
            ("filter", 1),
            ("last", 0),
            ("nth", 1),
            ("copy_from_slice", 1),
            ("into", 0),
            ("to_vec", 0),
            ("to_string", 0),
            ("insert", 2),
            ("remove", 1),
            ("eq", 1),
            ("cmp", 1),
            ("skip", 1),
            ("replace", 2),
            ("next", 0),
            ("flatten", 0),
            ("unwrap_or_default", 0),
        ];
        for (name, arguments) in long {
            assert_eq!(method(name, arguments), None, "{name}/{arguments}");
        }
    }

    #[test]
    fn operations_are_charged_by_class() {
        assert_eq!(method("wrapping_add", 1), Some(ARITHMETIC));
        assert_eq!(method("checked_div", 1), Some(DIVIDE));
        assert_eq!(method("saturating_pow", 1), Some(POWER));
        assert_eq!(method("wrapping_sort", 1), None);
        assert_eq!(function("u32", "rotate_left", 2), Some(ARITHMETIC));
        assert_eq!(function("u64", "wrapping_mul", 2), Some(MULTIPLY));
        assert_eq!(function("Vec", "with_capacity", 1), None);
        assert_eq!(function("u32", "from_str_radix", 2), None);
    }

    #[test]
    fn an_unknown_await_is_a_plain_yield() {
        assert!(waits("sleep") && waits("next_release") && waits("receive"));
        assert!(!waits("yield_now") && !waits("anything"));
    }
}
