package arch_test

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
)

// The sizes that a reader can keep in mind.
const (
	mostLines   = 5000 // of a package, without its tests
	mostMain    = 3000 // of a package main, which is verbs, flags and printing
	mostVerb    = 150  // of a file of a command
	mostMethods = 30   // of a type
)

// tooLarge are the packages and types that break a limit today, with the size that they had
// when their row was written. A figure may only become smaller; who brings a package or type
// within the limit takes its row out.
var tooLarge = map[string]int{}

// sizes counts the lines of every package, and the methods of every type as package.type.
func sizes(tree []source) (lines, methods map[string]int) {
	lines, methods = map[string]int{}, map[string]int{}
	for _, f := range tree {
		if f.test || f.forTests() {
			continue
		}
		lines[f.pkg()] += f.lines
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				methods[f.pkg()+"."+receiver(fn)]++
			}
		}
	}
	return lines, methods
}

// receiver is the name of the type of a method.
func receiver(fn *ast.FuncDecl) string {
	name := ""
	ast.Inspect(fn.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == "" {
			name = id.Name // of T[P] the first one is T
		}
		return true
	})
	return name
}

// mains are the packages main.
func mains(tree []source) map[string]bool {
	out := map[string]bool{}
	for _, f := range tree {
		if f.ast.Name.Name == "main" {
			out[f.pkg()] = true
		}
	}
	return out
}

func sizeLaw(tree []source) []string {
	var out []string
	lines, methods := sizes(tree)
	main := mains(tree)
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		limit, advice := mostLines, "split it by what it does"
		if main[name] {
			limit, advice = mostMain, "give what is no verb a package"
		}
		if most := max(limit, tooLarge[name]); lines[name] > most {
			out = append(out, fmt.Sprintf("%s: %d lines, %d are enough: %s", name, lines[name], most, advice))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		if most := max(mostMethods, tooLarge[name]); methods[name] > most {
			out = append(out, fmt.Sprintf("%s: %d methods, %d are enough: give its parts types of their own", name, methods[name], most))
		}
	}
	return out
}

// verbLaw finds files of commands that do more than parse, call a package and print.
func verbLaw(tree []source) []string {
	var out []string
	main := mains(tree)
	for _, f := range tree {
		if main[f.pkg()] && strings.HasPrefix(f.path, "cmd/") && !f.test && f.lines > mostVerb {
			out = append(out, fmt.Sprintf("%s: %d lines, %d are enough: what a verb does is a package", f.path, f.lines, mostVerb))
		}
	}
	return out
}

// sizeRowLaw finds rows of tooLarge that are not needed any more.
func sizeRowLaw(tree []source) []string {
	var out []string
	lines, methods := sizes(tree)
	main := mains(tree)
	for _, name := range slices.Sorted(maps.Keys(tooLarge)) {
		limit := mostLines
		if main[name] {
			limit = mostMain
		}
		if lines[name] <= limit && methods[name] <= mostMethods {
			out = append(out, fmt.Sprintf("test/arch: the row of %s in tooLarge is not needed any more", name))
		}
	}
	return out
}
