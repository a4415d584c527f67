package model_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/model"
)

// Together keeps each field of the parts.
func TestTogetherKeepsEachField(t *testing.T) {
	var part model.Observed
	v := reflect.ValueOf(&part).Elem()
	for _, f := range v.Fields() {
		switch f.Kind() {
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case reflect.Map:
			f.Set(reflect.MakeMap(f.Type()))
			f.SetMapIndex(reflect.Zero(f.Type().Key()), reflect.Zero(f.Type().Elem()))
		case reflect.Bool:
			f.SetBool(true)
		default:
			f.Set(reflect.ValueOf(time.Unix(1, 0)))
		}
	}
	all := reflect.ValueOf(model.Together(part))
	for field, f := range v.Fields() {
		require.Equal(t, f.Interface(), all.FieldByIndex(field.Index).Interface(), field.Name)
	}
}
