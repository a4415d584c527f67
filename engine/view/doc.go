// Package view writes values of the engine as text for people: the status of an agent, its
// history, why something is as it is, how steps and passes progress and how they ended.
//
// Most functions are pure: they take a value, the time, and a Paint that says whether to
// colour. Progress and PassProgress write to a Terminal while steps run.
package view
