// Package view writes values of the engine as text for people: the status of an agent, its history, explanations,
// progress and results.
//
// Most functions are pure: they take a value, the time, and a Paint that says whether to colour. Progress and
// PassProgress write to a Terminal while steps run.
package view
