package api

import "encoding/json"

// ReadRows reads a list as the reader of long lists does, and keeps all of it.
func ReadRows(doc []byte) (list []map[string]json.RawMessage, there bool, err error) {
	there, err = readRows(doc, func(r Row) {
		all := map[string]json.RawMessage{}
		for _, m := range r {
			all[string(m.name)] = m.val
		}
		list = append(list, all)
	})
	return list, there, err
}

// SkimRows does no more than read.
func SkimRows(doc []byte) {
	_, _ = readRows(doc, func(Row) {})
}

// Decisive picks the lines of a task's log that say why it failed.
func Decisive(log []string, status string) string { return decisive(log, status) }
