//! Which homes are wanted.

use policy::membership::homes::{Home, Map};
use policy::membership::{Address, Incarnation, NodeId};
use proptest::prelude::*;

fn address((node, incarnation): (u16, u32)) -> Address {
    Address { node: NodeId(node), incarnation: Incarnation(incarnation) }
}

fn map_of(homes: Vec<Address>) -> Map {
    Map(homes.into_iter().map(|at| Home { at, since: Incarnation(1) }).collect())
}

/// Some nodes, each with one epoch.
fn members() -> impl Strategy<Value = Vec<Address>> {
    prop::collection::btree_map(0u16..64, 1u32..4, 1..20).prop_map(|members| members.into_iter().map(address).collect())
}

fn counts(map: &[Address], members: &[Address]) -> Vec<usize> {
    members.iter().map(|member| map.iter().filter(|home| *home == member).count()).collect()
}

proptest! {
    #[test]
    fn homes_are_members_and_have_as_many_shards_each_whoever_had_them(
        shards in 1u16..200,
        before in members(),
        members in members(),
    ) {
        let current = map_of(Map::wanted(&Map::default(), shards, &before));
        let map = Map::wanted(&current, shards, &members);
        prop_assert_eq!(map.len(), usize::from(shards));
        let counts = counts(&map, &members);
        prop_assert_eq!(counts.iter().sum::<usize>(), usize::from(shards), "all are members");
        prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
    }

    #[test]
    fn only_shards_that_have_no_living_home_or_exceed_the_share_move(
        shards in 1u16..200,
        before in members(),
        members in members(),
    ) {
        let current = Map::wanted(&Map::default(), shards, &before);
        let current_map = map_of(current.clone());
        let map = Map::wanted(&current_map, shards, &members);
        let share = usize::from(shards).div_ceil(members.len());
        for member in &members {
            let had = current.iter().filter(|home| *home == member).count();
            let lost = current.iter().zip(&map).filter(|(old, new)| *old == member && *new != member).count();
            // One less than the rounded share, where the others need it.
            prop_assert!(lost <= had.saturating_sub(share - 1), "{had} of {share}, lost {lost}");
        }
        let again = Map::wanted(&map_of(map.clone()), shards, &members);
        prop_assert_eq!(&again, &map, "what is wanted stays");
    }

    #[test]
    fn a_death_moves_only_the_shards_of_the_dead(shards in 1u16..200, before in members(), dead in any::<prop::sample::Index>()) {
        prop_assume!(before.len() > 1);
        let current = Map::wanted(&Map::default(), shards, &before);
        let current_map = map_of(current.clone());
        let dead = *dead.get(&before);
        let members: Vec<_> = before.into_iter().filter(|member| *member != dead).collect();
        let map = Map::wanted(&current_map, shards, &members);
        for (old, new) in current.iter().zip(&map) {
            prop_assert!(old == new || *old == dead);
        }
    }
}

#[test]
fn an_earlier_epoch_of_a_member_is_no_home() {
    let current = map_of(vec![address((0, 1)), address((1, 7))]);
    let members = [address((0, 9)), address((1, 7))];
    assert_eq!(Map::wanted(&current, 2, &members), [address((0, 9)), address((1, 7))]);
}
