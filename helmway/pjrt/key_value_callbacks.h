#ifndef HELMWAY_PJRT_KEY_VALUE_CALLBACKS_H_
#define HELMWAY_PJRT_KEY_VALUE_CALLBACKS_H_

#include "helmway/pjrt/key_value_store.h"
#include "pjrt_c_api.h"

namespace helmway::pjrt {

// Hands `store` to the plugin as the callbacks of PJRT_Client_Create. It must live as long as the client that
// is made. Errors reach the plugin with their code and text; nothing is thrown into it.
void SetKeyValueCallbacks(KeyValueStore* store, PJRT_Client_Create_Args* args);

}  // namespace helmway::pjrt

#endif  // HELMWAY_PJRT_KEY_VALUE_CALLBACKS_H_
