/* Filters: a list of rules, read from the top, by the classifier's own tables.
 *
 * `picnic_filter::image` writes the list, in pages of words, with the structures that are searched
 * in user space: merged hash tables, and bit vectors for rules that hashes cannot separate. There
 * are two copies: one is in use while the other is written.
 *
 * Guarantees: for every packet, the verdict equals that of `picnic_filter::reader`.
 * Source: NICOS 4.4; docs/decisions/015-filter-classifier.md, 043-filters-in-the-kernel.md.
 */
#pragma once
#include "bpf.h"
#include "headers.h"

#define PAGE_WORDS 512
#define NO_PLACE 0xffff
#define TABLES 8
/* Filters of a list, slots of tables and all candidates of the vectors are fewer. */
#define MOST_TURNS (1 << 20)

enum { FILTER_DROP = 1, FILTER_ACCEPT = 2, FILTER_STEER = 3, FILTER_POLL = 5 };
enum { ON = 0, END_DROP = 1, END_STEER = 2, END_UNREADABLE = 3, END_POLL = 4, UNDECIDED = 5 };
enum { CLASSIFIER_V4 = 0, CLASSIFIER_V6 = 1, STOPS = 2 };

/* Pages of one of both lists, and counters per page. */
const volatile u32 FILTER_PAGES = 1;
const volatile u32 FILTER_ROOM = 1;

struct page {
	u64 words[PAGE_WORDS];
};

struct table {
	u64 mask[4];
	/* Ports and, above them, the protocol. */
	u64 rest;
	u32 slots;
	u32 slot_mask;
	u32 first;
	u32 unused[3];
};

struct classifier {
	u32 tables;
	u32 entries;
	u32 rules;
	u32 first_rule;
	/* Of one vector. */
	u32 words;
	/* A bit for each field with more than one interval. */
	u32 is_cut;
	u32 begins;
	u32 bits;
	struct table table[TABLES];
};

/* The first page. */
struct list {
	u32 rows;
	u32 count;
	u32 protocols;
	u32 first_protocol;
	/* The first filter for every packet. */
	u32 first_any;
	u32 unused;
	struct classifier classifiers[4];
};

struct row {
	u16 action;
	u16 queue;
	/* The place after its group. */
	u16 end;
	/* Filters from here on: for every packet, and those that stop unreadable packets. */
	u16 next_any;
	u16 next_stop[2];
	u16 unused[2];
};

struct rest_of_rule {
	/* The lowest ports, and the widths of the ranges. */
	u32 low;
	u32 span;
	u16 protocol;
	u16 protocol_mask;
	u16 place;
	u16 next;
};

struct rule_v4 {
	u64 value;
	u64 mask;
	struct rest_of_rule rest;
};

struct rule_v6 {
	u64 value[4];
	u64 mask[4];
	struct rest_of_rule rest;
	u64 unused[6];
};

struct met {
	u64 packets;
	u64 bytes;
	u64 unreadable;
};

/* Zero: no filters; otherwise the list in use, counted from one. */
struct {
	u32 list;
} FILTERS_NOW SEC(".bss.filters");

struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct page);
} FILTERS SEC(".maps");

/* By place in the list; written only by the borrowed core. */
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 2);
	__type(key, u32);
	__type(value, struct met);
} FILTERS_MET SEC(".maps");

inline_always struct page *page_of(u32 at)
{
	u32 page = at / PAGE_WORDS;

	return bpf_map_lookup_elem(&FILTERS, &page);
}

inline_always u64 word_at(u32 at)
{
	struct page *page = page_of(at);

	return page ? page->words[at % PAGE_WORDS] : 0;
}

/* A number of 16 bits, four to a word. Its index is bounded last, where every verifier sees it:
 * Linux 6.1 forgets a bound once bits are inserted. */
inline_always u32 number_in(const struct page *page, u32 at, u32 number)
{
	u32 place = at % PAGE_WORDS * 4 + number % 4;

	hide(place);
	return ((const u16 *)page)[place & (4 * PAGE_WORDS - 1)];
}

/* Multiplies and folds both halves: every bit of either number affects the low bits. */
inline_always u64 mix(u64 a, u64 b)
{
	u64 a0 = (u32)a, a1 = a >> 32, b0 = (u32)b, b1 = b >> 32;
	u64 low = a0 * b0, first = a1 * b0, second = a0 * b1;
	u64 middle = (low >> 32) + (u32)first + (u32)second;

	return (a * b) ^ (a1 * b1 + (first >> 32) + (second >> 32) + (middle >> 32));
}

#define K0 0x243f6a8885a308d3ULL
#define K1 0x13198a2e03707345ULL
#define K2 0xa4093822299f31d1ULL
#define K3 0x082efa98ec4e6c89ULL

/* Both IPv4 addresses; `word` is ports and, above them, the protocol. */
inline_always u64 hash_of_ipv4(const struct table *table, u64 addresses, u64 word)
{
	return mix((addresses & table->mask[0]) ^ K0, (word & table->rest) ^ K1);
}

inline_always u64 word_of(const struct key *key)
{
	return (u64)key->ports | (u64)key->protocol << 32;
}

inline_always u64 hash_of_key(const struct table *table, const struct key *key, int is_v6)
{
	const u64 *address = key->address;
	u64 word, last, rotated;

	if (!is_v6)
		return hash_of_ipv4(table, address[0], word_of(key));
	/* One after the other: a program's stack has no room for all at once. */
	last = address[3] & table->mask[3];
	rotated = mix((address[2] & table->mask[2]) ^ K2, (last << 32 | last >> 32) ^ K3);
	rotated = rotated << 17 | rotated >> 47;
	forget(rotated);
	rotated ^= mix((address[0] & table->mask[0]) ^ K0, (address[1] & table->mask[1]) ^ K1);
	forget(rotated);
	word = word_of(key) & table->rest;
	return rotated ^ mix(word ^ K3, K2);
}

inline_always int rest_matches(const struct rest_of_rule *rule, u64 word)
{
	u32 ports = word, protocol = word >> 32;
	u16 source = (u16)ports - (u16)rule->low;
	u16 destination = (u16)(ports >> 16) - (u16)(rule->low >> 16);

	return !((rule->protocol ^ protocol) & rule->protocol_mask) &&
	       source <= (u16)rule->span && destination <= (u16)(rule->span >> 16);
}

/* A search: rules from `from` on, before `best`. */
struct search {
	const struct key *key;
	u32 from;
	u32 best;
	/* Of the table or the vectors: the first rule, and the next. */
	u32 rules;
	u32 next;
};

/* A search in the vectors. Separate, since a table's is deep in the stack, whose size Linux 6.1
 * rounds up. */
struct vectors {
	struct search search;
	u32 word;
	u32 words;
	u64 bits;
	u32 at[4];
};

inline_always void begin(struct search *search, const struct key *key, u32 from, u32 best)
{
	search->key = key;
	search->from = from;
	search->best = best;
}

/* The result of comparing with a rule, which may improve the answer: the next rule of its slot, or
 * nothing if the search has ended. */
inline_always u32 compared(const struct rest_of_rule *rest, u64 differs, u64 word, u32 from, u32 *best)
{
	/* In the order of the list: later rules cannot be better. */
	if (rest->place >= *best)
		return 0;
	if (!differs && rest->place >= from && rest_matches(rest, word)) {
		*best = rest->place;
		return 0;
	}
	return rest->next;
}

inline_always u32 compare_ipv4(u64 addresses, u64 word, u32 rules, u32 index, u32 from, u32 *best)
{
	u32 at = rules + index * 4;
	struct page *page = page_of(at);
	const struct rule_v4 *rule;

	if (!page)
		return 0;
	rule = (void *)&page->words[at & (PAGE_WORDS - 4)];
	return compared(&rule->rest, (rule->value ^ addresses) & rule->mask, word, from, best);
}

inline_always u32 compare(const struct key *key, u32 rules, u32 index, u32 from, u32 *best,
			  int is_v6)
{
	u32 at = rules + index * 16;
	const u64 *address = key->address;
	const struct rule_v6 *rule;
	struct page *page;
	u64 differs;

	if (!is_v6)
		return compare_ipv4(address[0], word_of(key), rules, index, from, best);
	page = page_of(at);
	if (!page)
		return 0;
	rule = (void *)&page->words[at & (PAGE_WORDS - 16)];
	differs = ((rule->value[0] ^ address[0]) & rule->mask[0]) |
		  ((rule->value[1] ^ address[1]) & rule->mask[1]) |
		  ((rule->value[2] ^ address[2]) & rule->mask[2]) |
		  ((rule->value[3] ^ address[3]) & rule->mask[3]);
	return compared(&rule->rest, differs, word_of(key), from, best);
}

inline_always long next_of_slot(struct search *search, int is_v6)
{
	search->next = compare(search->key, search->rules, search->next, search->from,
			       &search->best, is_v6);
	return !search->next;
}

static long next_of_slot_v4(u64 turn, struct search *search)
{
	(void)turn;
	return next_of_slot(search, 0);
}

static long next_of_slot_v6(u64 turn, struct search *search)
{
	(void)turn;
	return next_of_slot(search, 1);
}

/* A rule better than `best` in a table of the classifier at `where`. */
inline_always u32 search_table(u32 base, u32 where, const struct key *key, u32 from, u32 best,
			       int is_v6)
{
	struct list *list = (struct list *)page_of(base);
	const struct classifier *classifier;
	const struct table *table;
	struct search search;
	struct page *page;
	u32 slot, at;

	if (!list || !key)
		return best;
	classifier = &list->classifiers[where / TABLES & 3];
	table = &classifier->table[where % TABLES];
	slot = hash_of_key(table, key, is_v6) & table->slot_mask;
	at = table->slots + slot / 4;
	page = page_of(at);
	if (!page)
		return best;
	slot = number_in(page, at, slot);
	if (!slot)
		return best;
	begin(&search, key, from, best);
	search.rules = classifier->entries;
	search.next = slot;
	if (is_v6)
		bpf_loop(MOST_TURNS, next_of_slot_v6, &search, 0);
	else
		bpf_loop(MOST_TURNS, next_of_slot_v4, &search, 0);
	return search.best;
}

/* Verified separately, not again at each call. */
by_itself u32 table_v4(u32 base, u32 where, const struct key *key, u32 from, u32 best)
{
	return search_table(base, where, key, from, best, 0);
}

by_itself u32 table_v6(u32 base, u32 where, const struct key *key, u32 from, u32 best)
{
	return search_table(base, where, key, from, best, 1);
}

/* The index of a word's lowest set bit. Without branches, so that it can be inlined: in Linux 6.1 a
 * call takes 32 bytes of stack, which a filter's search does not have. */
inline_always u32 lowest(u64 bits)
{
	u64 below = (bits & -bits) - 1;

	below -= below >> 1 & 0x5555555555555555;
	below = (below & 0x3333333333333333) + (below >> 2 & 0x3333333333333333);
	below = (below + (below >> 4)) & 0x0f0f0f0f0f0f0f0f;
	return below * 0x0101010101010101 >> 56;
}

/* The interval of a value in a field: counts the starts at or below it. */
inline_always u32 interval(u32 at, u64 value)
{
	struct page *begins = page_of(at);
	u32 below = 0;

	if (!begins)
		return 0;
#pragma unroll
	for (u32 step = 32; step; step /= 2) {
		if (begins->words[(at + below + step - 1) % PAGE_WORDS] <= value)
			below += step;
	}
	return below;
}

/* The next rule with a bit in all vectors, or the next word of bits. */
inline_always long next_candidate(struct vectors *vectors, int is_v6)
{
	u32 index, word = vectors->word, best = vectors->search.best;

	if (!vectors->bits) {
		if (word >= vectors->words)
			return 1;
		vectors->bits = word_at(vectors->at[0] + word) &
			       word_at(vectors->at[1] + word) &
			       word_at(vectors->at[2] + word) &
			       word_at(vectors->at[3] + word);
		vectors->word = word + 1;
		return 0;
	}
	index = (word - 1) * 64 + lowest(vectors->bits);
	vectors->bits &= vectors->bits - 1;
	compare(vectors->search.key, vectors->search.rules, index, vectors->search.from, &best, is_v6);
	if (best == vectors->search.best)
		return 0;
	vectors->search.best = best;
	return 1;
}

static long next_candidate_v4(u64 turn, struct vectors *vectors)
{
	(void)turn;
	return next_candidate(vectors, 0);
}

static long next_candidate_v6(u64 turn, struct vectors *vectors)
{
	(void)turn;
	return next_candidate(vectors, 1);
}

inline_always u64 be64(u64 word)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
	return __builtin_bswap64(word);
#else
	return word;
#endif
}

/* The first and the second IPv4 address as a number, padded with zeros. */
inline_always u64 first_v4(u64 addresses)
{
	return be64(addresses) & 0xffffffff00000000ULL;
}

inline_always u64 second_v4(u64 addresses)
{
	return be64(addresses) << 32;
}

/* The vector of a value in one of the four fields of a classifier. */
by_itself u32 vector_of(u32 base, u32 number, u32 field, u64 value)
{
	struct list *list = (struct list *)page_of(base);
	const struct classifier *classifier;
	u32 at = nothing;

	if (!list)
		return 0;
	classifier = &list->classifiers[number & 3];
	if (classifier->is_cut >> (field & 3) & 1)
		at = interval(classifier->begins + field * 64, value);
	return classifier->bits + (field * 64 + at) * classifier->words;
}

/* A rule better than `best` in the vectors. */
inline_always u32 search_vectors(u32 base, u32 number, const struct key *key, u32 from, u32 best,
				 int is_v6)
{
	struct list *list = (struct list *)page_of(base);
	struct vectors vectors = {};

	if (!list || !key)
		return best;
	begin(&vectors.search, key, from, best);
	vectors.search.rules = list->classifiers[number & 3].first_rule;
	vectors.word = nothing;
	vectors.words = list->classifiers[number & 3].words;
	vectors.bits = nothing;
	vectors.at[0] = vector_of(base, number, 0,
				      is_v6 ? be64(key->address[0]) : first_v4(key->address[0]));
	vectors.at[1] = vector_of(base, number, 1,
				      is_v6 ? be64(key->address[2]) : second_v4(key->address[0]));
	vectors.at[2] = vector_of(base, number, 2, (u16)key->ports);
	vectors.at[3] = vector_of(base, number, 3, key->ports >> 16);
	if (is_v6)
		bpf_loop(MOST_TURNS, next_candidate_v6, &vectors, 0);
	else
		bpf_loop(MOST_TURNS, next_candidate_v4, &vectors, 0);
	return vectors.search.best;
}

by_itself u32 vectors_v4(u32 base, u32 number, const struct key *key, u32 from, u32 best)
{
	return search_vectors(base, number, key, from, best, 0);
}

by_itself u32 vectors_v6(u32 base, u32 number, const struct key *key, u32 from, u32 best)
{
	return search_vectors(base, number, key, from, best, 1);
}

/* The place of the first matching rule from `from` on, or NO_PLACE. */
inline_always u32 find(u32 base, u32 number, const struct key *key, u32 from, int is_v6)
{
	struct list *list = (struct list *)page_of(base);
	const struct classifier *classifier;
	u32 best = NO_PLACE;

	if (!list || !key)
		return NO_PLACE;
	classifier = &list->classifiers[number & 3];
	for (u32 i = 0; i < TABLES; i++) {
		u32 where = number * TABLES + i;

		if (i >= classifier->tables || classifier->table[i].first >= best)
			break;
		best = is_v6 ? table_v6(base, where, key, from, best) :
			       table_v4(base, where, key, from, best);
	}
	if (!classifier->rules)
		return best;
	return is_v6 ? vectors_v6(base, number, key, from, best) :
		       vectors_v4(base, number, key, from, best);
}

by_itself u32 find_v4(u32 base, u32 number, const struct key *key, u32 from)
{
	return find(base, number, key, from, 0);
}

by_itself u32 find_v6(u32 base, u32 number, const struct key *key, u32 from)
{
	return find(base, number, key, from, 1);
}

/* A packet's path through the list. */
struct judged {
	struct tuple packet;
	/* Filters before this place are skipped. */
	u32 from;
	/* The list. */
	u32 base;
	u32 rows;
	u32 count;
	u32 counters;
	/* Its counters. */
	u32 packets;
	u32 bytes;
	/* With the protocols so far. */
	u32 found;
	/* Its verdict. */
	u32 verdict;
	u32 queue;
};

/* The first rule of a packet's family without conditions on hidden parts. */
inline_always u32 find_in(struct judged *judged, u32 first)
{
	if (judged->packet.type_family == IPV4)
		return find_v4(judged->base, first + CLASSIFIER_V4, &judged->packet.key,
			       judged->from);
	if (judged->packet.type_family == IPV6)
		return find_v6(judged->base, first + CLASSIFIER_V6, &judged->packet.key,
			       judged->from);
	return NO_PLACE;
}

/* With each protocol that a filter names, and one that no filter names. */
static long with_protocol(u64 turn, struct judged **way)
{
	struct judged *judged = *way;
	struct list *list = (struct list *)page_of(judged->base);
	struct page *page;
	u32 at, found, number = turn;

	if (!list || number >= list->protocols)
		return 1;
	at = list->first_protocol + number / 4;
	page = page_of(at);
	if (!page)
		return 1;
	judged->packet.key.ports = 0;
	judged->packet.key.protocol = number_in(page, at, number) | WITHOUT_PORTS;
	found = find_in(judged, STOPS);
	if (found < judged->found)
		judged->found = found;
	return 0;
}

/* The first filter from `from` on that stops a packet with hidden parts, because it could match. */
inline_always u32 find_possible(struct judged *judged, u32 next_v4, u32 next_v6)
{
	struct key *key;
	u32 ports, protocol;

	if (judged->packet.hidden == HIDDEN_PORTS)
		return find_in(judged, STOPS);
	if (judged->packet.hidden == HIDDEN_PROTOCOL) {
		key = &judged->packet.key;
		ports = key->ports;
		protocol = key->protocol;
		judged->found = NO_PLACE;
		bpf_loop(257, with_protocol, &judged, 0);
		key->ports = ports;
		key->protocol = protocol;
		return judged->found;
	}
	if (judged->packet.hidden < HIDDEN_DESTINATION)
		return NO_PLACE;
	if (judged->packet.hidden == HIDDEN_EVERYTHING)
		return next_v4 < next_v6 ? next_v4 : next_v6;
	return judged->packet.type_family == IPV4 ? next_v4 : next_v6;
}

/* The first rule that matches a packet with an authentication header, which also counts as its
 * protocol. */
inline_always u32 find_authenticated(struct judged *judged)
{
	struct key *key;
	u32 ports, protocol, found;

	key = &judged->packet.key;
	ports = key->ports;
	protocol = key->protocol;
	key->ports = 0;
	key->protocol = (protocol & (WITHOUT_SOURCE | WITHOUT_DESTINATION)) | WITHOUT_PORTS |
			PROTOCOL_AUTHENTICATION;
	found = find_in(judged, CLASSIFIER_V4);
	key->ports = ports;
	key->protocol = protocol;
	return found;
}

inline_always const struct row *row_at(const struct judged *judged, u32 place)
{
	u32 at = judged->rows + 2 * place;
	struct page *page = page_of(at);

	return page ? (void *)&page->words[at & (PAGE_WORDS - 2)] : 0;
}

inline_always struct met *met_at(const struct judged *judged, u32 place)
{
	u32 at = judged->counters + place;

	return bpf_map_lookup_elem(&FILTERS_MET, &at);
}

/* Applies the filter at a place of the list to a packet; nonzero if the packet ends there. */
inline_always long meet(struct judged *judged, u32 place)
{
	const struct row *row = row_at(judged, place);
	struct met *met = met_at(judged, place);

	if (!row || !met)
		return 1;
	met->packets += judged->packets;
	met->bytes += judged->bytes;
	if (row->action == FILTER_DROP || row->action == FILTER_STEER ||
	    row->action == FILTER_POLL) {
		judged->verdict = row->action == FILTER_DROP  ? END_DROP :
				  row->action == FILTER_STEER ? END_STEER :
								END_POLL;
		judged->queue = row->queue;
		return 1;
	}
	judged->from = row->action == FILTER_ACCEPT ? row->end : place + 1;
	return judged->from >= judged->count;
}

/* The next filter that matches a packet. */
static long next_filter(u64 turn, struct judged **way)
{
	struct judged *judged = *way;
	u32 certain, possible = NO_PLACE, place, from = judged->from;
	const struct row *row = row_at(judged, from);
	struct met *met;

	(void)turn;
	if (!row)
		return 1;
	certain = find_in(judged, CLASSIFIER_V4);
	if (judged->packet.authenticated) {
		u32 also = find_authenticated(judged);

		certain = also < certain ? also : certain;
	}
	if (judged->packet.hidden != HIDDEN_NOTHING)
		possible = find_possible(judged, row->next_stop[0], row->next_stop[1]);
	place = row->next_any < certain ? row->next_any : certain;
	if (possible < place) {
		met = met_at(judged, possible);
		if (met)
			met->unreadable += judged->packets;
		judged->verdict = END_UNREADABLE;
		return 1;
	}
	if (place == NO_PLACE)
		return 1;
	return meet(judged, place);
}

/* Verified separately: the verifier keeps no knowledge of memory outside a function's own stack. */
by_itself u32 meet_filters(struct judged *judged)
{
	if (!judged)
		return 0;
	bpf_loop(MOST_TURNS, next_filter, &judged, 0);
	return judged->verdict | judged->queue << 16;
}

/* Rules of a slot that are compared inline. */
#define RULES_IN_PLACE 4
/* Instead of a place, if finding it needs a call. */
#define NOT_IN_PLACE 0x10000

/* The first filter that matches an IPv4 packet, found without a call: on processors with return
 * mitigations, a call costs as much as the search of a table. Everything stays in registers. */
inline_always u32 find_in_place(const struct list *list, u64 addresses, u64 word, u32 base,
				const struct key *key)
{
	const struct classifier *classifier = &list->classifiers[CLASSIFIER_V4];
	u32 best = list->first_any;

	if (!key && classifier->rules)
		return NOT_IN_PLACE;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < TABLES; i++) {
		const struct table *table = &classifier->table[i];
		u32 slot, at, next;
		struct page *page;

		if (i >= classifier->tables || table->first >= best)
			break;
		slot = hash_of_ipv4(table, addresses, word) & table->slot_mask;
		at = table->slots + slot / 4;
		page = page_of(at);
		if (!page)
			break;
		next = number_in(page, at, slot);
#pragma clang loop unroll(disable)
		for (u32 turn = 0; next && turn < RULES_IN_PLACE; turn++)
			next = compare_ipv4(addresses, word, classifier->entries, next, 0, &best);
		if (next && !key)
			return NOT_IN_PLACE;
		if (next)
			best = table_v4(base, CLASSIFIER_V4 * TABLES + i, key, 0, best);
	}
	if (key && classifier->rules)
		best = vectors_v4(base, CLASSIFIER_V4, key, 0, best);
	return best;
}

/* The verdict of the first filter that matches a plain packet, if it is final: END_..., with the
 * queue above it. Otherwise UNDECIDED, without counting. */
inline_always u32 judge_plain(const struct packet *packet, u32 now, u32 packets)
{
	u32 place, at, fate;
	const struct list *list;
	const struct row *row;
	struct met *met;
	struct page *page;
	u64 word;

	if (!is_plain(packet))
		return UNDECIDED;
	word = (u64)ports_of(packet->data + 34) | (u64)packet->data[23] << 32;
	list = (struct list *)page_of((now - 1) * FILTER_PAGES * PAGE_WORDS);
	if (!list)
		return UNDECIDED;
	place = find_in_place(list, *(u64 *)(packet->data + 26), word, 0, 0);
	if (place == NOT_IN_PLACE)
		return UNDECIDED;
	if (place == NO_PLACE)
		return ON;
	at = list->rows + 2 * place;
	page = page_of(at);
	if (!page)
		return UNDECIDED;
	row = (void *)&page->words[at & (PAGE_WORDS - 2)];
	if (row->action == FILTER_DROP)
		fate = END_DROP;
	else if (row->action == FILTER_STEER)
		fate = END_STEER | (u32)row->queue << 16;
	else if (row->action == FILTER_POLL)
		fate = END_POLL;
	else if (row->action == FILTER_ACCEPT && row->end >= list->count)
		fate = ON;
	else
		return UNDECIDED;
	/* Otherwise the compiler would keep the counters' address in a register from the start. */
	hide(now);
	at = (now - 1) * FILTER_ROOM + place;
	met = bpf_map_lookup_elem(&FILTERS_MET, &at);
	if (!met)
		return UNDECIDED;
	met->packets += packets;
	met->bytes += packet->length;
	return fate;
}

/* The filters' verdict on a packet that `judge_plain` leaves undecided. */
inline_always u32 judge_other(void *context, int is_skb, u32 now, u32 packets)
{
	struct judged judged = {};
	struct list *list;

	judged.base = (now - 1) * FILTER_PAGES * PAGE_WORDS;
	list = (struct list *)page_of(judged.base);
	if (!list || !list->count)
		return ON;
	judged.rows = list->rows;
	judged.count = list->count;
	judged.counters = (now - 1) * FILTER_ROOM;
	judged.packets = packets;
	judged.bytes = length_of(context, is_skb);
	if (is_skb)
		read_skb(context, &judged.packet);
	else
		read_frame(context, &judged.packet);
	if (judged.packet.family == IPV4 && judged.packet.hidden == HIDDEN_NOTHING) {
		u32 place = find_in_place(list, judged.packet.key.address[0], word_of(&judged.packet.key),
					  judged.base, &judged.packet.key);

		if (place == NO_PLACE)
			return ON;
		if (meet(&judged, place))
			return judged.verdict | judged.queue << 16;
	}
	return meet_filters(&judged);
}

/* Verified separately, like the chain after them. */
by_itself u32 judge_plain_frame(struct xdp_md *context, u32 now, u32 packets)
{
	struct packet packet = packet_of_frame(context);

	return judge_plain(&packet, now, packets);
}

by_itself u32 judge_plain_skb(struct __sk_buff *context, u32 now, u32 packets)
{
	struct packet packet = packet_of_skb(context);

	return judge_plain(&packet, now, packets);
}

by_itself u32 judge_other_frame(struct xdp_md *context, u32 now, u32 packets)
{
	return judge_other(context, 0, now, packets);
}

by_itself u32 judge_other_skb(struct __sk_buff *context, u32 now, u32 packets)
{
	return judge_other(context, 1, now, packets);
}

/* The filters' verdict on a packet: END_..., and the queue above it. */
inline_always u32 judge(void *context, int is_skb, u32 now, u32 packets)
{
	u32 fate = is_skb ? judge_plain_skb(context, now, packets) :
			    judge_plain_frame(context, now, packets);

	if (fate != UNDECIDED)
		return fate;
	return is_skb ? judge_other_skb(context, now, packets) :
			judge_other_frame(context, now, packets);
}
