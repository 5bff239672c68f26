include!(env!("PICNIC_PRELUDE"));
use picnic_wcet::{bounded, task};

fn plain() -> u32 {
    3
}

#[bounded]
fn methods(words: &mut Vec<u32>) {
    words.sort(); //~ the cost of the method `sort` is not known: move it into a function of your own with `#[bounded]`, or give its time, `#[wcet(ns = N)]` before the statement
}

#[bounded]
fn associated() -> Vec<u32> {
    Vec::with_capacity(4) //~ the cost of `Vec::with_capacity` is not known
}

#[bounded]
fn closures(words: Option<u32>) -> Option<u32> {
    words.map(|word| word + 1) //~ the number of calls of this closure is unknown here //~ the cost of the method `map` is not known
}

#[bounded]
fn values(work: fn() -> u32, more: impl Fn() -> u32) -> u32 {
    work() + more() //~ `work` is a value, and the function it calls is unknown //~ `more` is a value
}

#[bounded]
fn fields(work: (fn() -> u32,)) -> u32 {
    (work.0)() //~ the function called here is unknown
}

#[bounded]
fn macros(words: u32) {
    println!("{words}"); //~ the code that `println!` expands to is unknown here: give its time
}

#[bounded]
fn arrays<const N: usize>() -> [u32; N] {
    [0; N] //~ the length of this array is unknown here
}

#[bounded]
fn inner() -> u32 {
    fn nested() -> u32 {
        4
    }
    use self::plain as renamed;
    nested() + renamed() //~ `nested` is defined or imported inside the body //~ `renamed` is defined or imported
}

#[task]
async fn shadows(card: Card) {
    card.sleep(1).await;
    if let Some(card) = Some(3) { //~ `card` is the task context here
        let _ = card;
    }
}

#[bounded]
fn jumps_out(words: &[u32]) -> u32 {
    #[bound(4)]
    for word in words {
        #[wcet(ns = 30)]
        if *word == 3 {
            break; //~ a time covers only code without jumps to other code: move this jump out
        }
    }
    plain_sum(words)
}

#[picnic_wcet::wcet(ns = 4)]
fn plain_sum(words: &[u32]) -> u32 {
    words.iter().sum()
}
